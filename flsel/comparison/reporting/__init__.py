"""Show judged results: the page with its charts, tables, Markdown, and figures for papers."""
