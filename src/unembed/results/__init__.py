"""Results of computations: tables with a provenance, and how they are printed and saved.

This subpackage defines the provenance (the model, corpus, basis, dtype, seed and version of a result), the table (rows,
JSON, CSV, Parquet, HTML, terminal), result files, and the function that marks invisible characters in tokens. It does
not depend on a model.
"""

from unembed.results.display import Displayed as Displayed
from unembed.results.files import check_writable as check_writable
from unembed.results.files import make_folder as make_folder
from unembed.results.files import whole_file as whole_file
from unembed.results.files import write_whole as write_whole
from unembed.results.files import writing as writing
from unembed.results.html_table import html_table as html_table
from unembed.results.lists import lower_triangle as lower_triangle
from unembed.results.lists import numbers as numbers
from unembed.results.lists import numbers_or_none as numbers_or_none
from unembed.results.number_format import NOT_A_NUMBER as NOT_A_NUMBER
from unembed.results.number_format import as_written as as_written
from unembed.results.number_format import bytes_in_words as bytes_in_words
from unembed.results.number_format import common_decimals as common_decimals
from unembed.results.number_format import decimals_of as decimals_of
from unembed.results.number_format import format_cell as format_cell
from unembed.results.number_format import format_error as format_error
from unembed.results.number_format import format_number as format_number
from unembed.results.number_format import format_percent as format_percent
from unembed.results.number_format import format_probability as format_probability
from unembed.results.number_format import format_setting as format_setting
from unembed.results.number_format import format_signed as format_signed
from unembed.results.number_format import format_spread as format_spread
from unembed.results.number_format import format_with_interval as format_with_interval
from unembed.results.provenance import Provenance as Provenance
from unembed.results.records import Records as Records
from unembed.results.table import Table as Table
from unembed.results.token_text import character_at as character_at
from unembed.results.token_text import characters as characters
from unembed.results.token_text import join_bytes as join_bytes
from unembed.results.token_text import quoted as quoted
from unembed.results.token_text import visible as visible
from unembed.results.token_text import visible_html as visible_html
from unembed.results.token_text import visible_rich as visible_rich
from unembed.results.token_text import whole_character as whole_character
