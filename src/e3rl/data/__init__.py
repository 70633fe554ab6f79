"""Problems and their order."""
