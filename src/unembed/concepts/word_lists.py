"""Lists that WordNet lacks: English function words by class, such as prepositions, and given names."""

from __future__ import annotations

CLOSED = {
    "personal pronouns": "i me you he him she her it we us they them myself yourself himself herself itself ourselves "
    "yourselves themselves oneself thou thee ye",
    "possessives": "my mine your yours his her hers its our ours their theirs thy thine",
    "articles and demonstratives": "a an the this that these those",
    "wh-words": "who whom whose which what when where why how whoever whatever whichever whenever wherever whether "
    "whereby wherein whereas whence",
    "relativizers and complementizers": "that which who whom whose where when whether if whereby wherein",
    "auxiliary verbs": "am is are was were be been being have has had having do does did doing done 's 're 've 'm 'd",
    "modal verbs": "can could may might must shall should will would ought cannot can't couldn't won't wouldn't "
    "shouldn't mustn't needn't 'll",
    "negations": "no not n't never none nobody nothing neither nor nowhere cannot can't couldn't won't wouldn't "
    "shouldn't don't doesn't didn't isn't aren't wasn't weren't hasn't haven't hadn't without",
    "prepositions": "about above across after against along alongside amid among around as at atop before behind below "
    "beneath beside besides between beyond by despite down during except for from in inside into like near of off on "
    "onto opposite out outside over past per since through throughout till to toward towards under underneath until "
    "unto up upon via with within without",
    "conjunctions": "and or but nor yet so for because although though while whereas unless until if since as than "
    "whether lest",
    "linking adverbs": "however therefore thus moreover furthermore hence meanwhile nevertheless nonetheless otherwise "
    "consequently accordingly instead besides likewise similarly additionally finally then",
    "quantifiers": "all any both each every few many more most much several some enough less least fewer another other "
    "either neither none half plenty",
    "adverbs of degree": "very too quite rather so extremely highly fairly almost nearly completely totally absolutely "
    "slightly somewhat particularly especially really entirely fully",
    "adverbs of time": "now then soon later already still yet always never often sometimes usually recently today "
    "tomorrow yesterday tonight once twice again ago early eventually immediately",
    "number words": "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million "
    "billion trillion dozen",
    "ordinal words": "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth twentieth",
}
"""Classes of function words: the name of the class, and its words."""

_MEANINGFUL = {"number words", "ordinal words", "linking adverbs", "adverbs of degree", "adverbs of time"}
_FURTHER = "just very too so now then here there once only same such own further again"
STOP_WORDS = frozenset(
    " ".join([*(words for name, words in CLOSED.items() if name not in _MEANINGFUL), _FURTHER]).split()
)
"""Words with so little meaning that the papers list concepts of them separately."""

GIVEN_NAMES = (
    "aaron adam adrian alan albert alex alexander alexandra alfred alice amanda amy andrea andrew angela ann anna anne "
    "anthony antonio arthur barbara ben benjamin bernard betty bill bob bobby brandon brian bruce carl carlos carol "
    "caroline catherine charles charlie charlotte chris christian christina christine christopher claire clara craig "
    "daniel danny dave david deborah dennis diana diane donald dorothy douglas dylan edgar edmund edward edwin eleanor "
    "elizabeth ellen emily emma eric ernest ethan eugene eva evelyn felix fernando florence frances francis frank fred "
    "frederick gabriel gary george gerald gilbert gordon grace graham greg gregory hannah harold harry harvey helen "
    "henry herbert howard hugh ian isaac isabella ivan jack jacob jake james jamie jane janet jason jay jean jeff "
    "jeffrey jennifer jeremy jerry jesse jessica jim jimmy joan joe joel john johnny jon jonathan jordan jose joseph "
    "joshua juan judith julia julian julie justin karen kate katherine kathleen keith kelly ken kenneth kevin kim kyle "
    "larry laura lauren lawrence lee leo leon leonard leslie lewis linda lisa louis louise lucas lucy luis luke lynn "
    "marcus margaret maria marie mario marion mark martha martin mary matt matthew maurice max megan melissa michael "
    "michelle miguel mike miles mitchell nancy nathan neil nicholas nick nicole nigel noah norman oliver olivia oscar "
    "owen pamela patricia patrick paul paula pedro peter phil philip rachel ralph ray raymond rebecca richard rick "
    "robert roberto robin roger roland ron ronald rose ross roy russell ruth ryan sally sam samantha samuel sandra "
    "sara sarah scott sean sebastian sergio sharon shaun shawn simon sophia sophie stanley stephanie stephen steve "
    "steven stewart stuart sue susan sylvia ted terry theodore theresa thomas tim timothy todd tom tommy tony tracy "
    "travis trevor tyler vanessa victor victoria vincent virginia walter warren wayne wendy will william zachary"
)

SUFFIXES = {
    "nouns in -ion": "ion",
    "nouns in -ness": "ness",
    "nouns in -ment": "ment",
    "nouns in -ity": "ity",
    "nouns in -ism": "ism",
    "nouns in -ship": "ship",
    "nouns in -ance or -ence": "nce",
    "adjectives in -able or -ible": "ble",
    "adjectives in -ous": "ous",
    "adjectives in -ive": "ive",
    "adjectives in -al": "al",
    "adjectives in -ic": "ic",
    "adjectives in -ful": "ful",
    "adjectives in -less": "less",
    "words in -ist": "ist",
    "words in -er or -or": ("er", "or"),
    "adverbs in -ly": "ly",
}
"""Classes of derived words: the name of the class, and the ending (or endings) of its words."""

PREFIXES = ("un", "re", "dis", "mis", "over", "under", "inter", "anti", "non", "pre", "out", "sub", "super")
