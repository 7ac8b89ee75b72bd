"""What was judged, shown: the page with its charts, tables, Markdown, and figures for papers."""
