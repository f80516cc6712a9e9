"""Reports: self-contained HTML pages of an audit, a scorecard and a comparison, with their charts and templates."""
