"""The web: the application that browsers speak to, its rules, routes and pages."""
