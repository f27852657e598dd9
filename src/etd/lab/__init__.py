"""Everything around training: runs on disk, reports, films, maze studies, benchmarks, checks, comparisons, the paper.
A room imports only from rooms before it: runs, report, film, mazes, bench, check, compare, paper."""
