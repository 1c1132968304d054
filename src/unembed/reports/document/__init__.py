"""What a report consists of and how it is written: sections, tables, figures, HTML, intervals."""
