"""The report: one self-contained HTML page, its charts and templates."""
