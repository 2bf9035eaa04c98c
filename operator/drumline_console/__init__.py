"""Draw the page, the notebook's cards, `drumline top` and the Gantt chart. Optional.

`ui` serves the page of `drumline ui` and of the cluster's own page. `notebook` gives the same rows
to Jupyter; users import it as `drumline.notebook`. `top` is the terminal's live table. `gantt`
draws jobs over time as text, HTML or a picture.

All of them read the rows of `drumline.overview`, the same as `-o json`; they compute no figure of
their own. The page writes only what its user asks for, with the rights of that user. Text of jobs
is escaped before it reaches a browser.

Nothing below imports this package: `drumline_cli.program` finds its commands by their names. So an
installation without the extra `console` lacks these commands and nothing else.

Start with `ui.server` (routes and access), then `ui.pages`. Or with `top.screen`.

Data: the API server -> `drumline_cli.overview.read` -> rows -> HTML, cards or lines.
"""
