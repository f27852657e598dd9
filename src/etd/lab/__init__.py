"""Everything around training: runs on disk, reports, films, a live page, maze studies, benchmarks, checks, comparisons
and the paper. A room imports only from rooms before it: runs, report, film, live, mazes, bench, check, compare, paper."""
