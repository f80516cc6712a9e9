"""The signal: claims, judgments, and reviews where there are any, become trust. Pure functions: no input or output."""
