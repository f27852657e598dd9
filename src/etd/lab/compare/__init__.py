"""Comparisons of bonuses on environments: plan the runs, train them on one machine or a cluster, summarise.
What several runs need together belongs here, whether or not they are the paper's."""
