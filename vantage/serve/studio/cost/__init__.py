"""The Cost page: what a cache takes and what a pass costs, calculated and measured."""
