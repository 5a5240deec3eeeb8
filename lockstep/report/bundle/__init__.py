"""Results as one archive: what is measured, how, the page, and how to make it again.

`archive` writes and `opening` reads it, safely, since it comes from strangers; `bundle_cli` says
what goes in, `describing` makes the texts, `minimal` cuts one point out.
"""
