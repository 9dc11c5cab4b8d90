"""Problems and their tests: read, run in the sandbox, judged, and prepared from public data sets."""
