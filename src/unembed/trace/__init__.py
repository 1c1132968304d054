"""One prompt seen whole: readings, sub-updates, events, logit attribution, and the findings worth a sentence."""
