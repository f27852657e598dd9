"""Everything around training: runs on disk, reports, films, a live page, maze studies, benchmarks, checks, comparisons
and the paper. A room imports only from those before it; their order is in CONTRIBUTING.md."""
