/** What `npm run sim -- --help` says. */
export const USAGE = `npm run sim -- [options]

Histories of simulated processes on a simulated store, one seed each. Exits with 1 if a promise was broken, if an innocent job was blamed in a storm, or if
a mutant was not found, and prints what happened and the command that replays it. docs/testing-simulator.md has more.

  --seeds N [--from 1]      this many histories, default 300
  --seed N                  one of them; with --verbose its whole story, with --shrink the shortest that still fails
  --mutants                 bugs that were put in on purpose: each must be found
    --budget 500            by this many seeds at most
    --focus                 with only the workloads in which the bug shows
  --exhaustive              every schedule of a small scope
  --storm                   kills from outside, many of them, and who is blamed
  --isolation               a culprit among 50 jobs, and 1,000 slow jobs after two kills: the figures of isolation
  --schedules [--days 365]  years of schedules, under kills and clock jumps
  --requests                requests to a remote that may or may not have acted, under kills, pauses and cuts
  --collections             numbered messages from a broker that repeats them, under kills, lost answers and producers that stop
  --floors                  where claims on PostgreSQL begin to read, next to late commits and jobs that return
  --store atomic            histories on a store in the shape of Redis, which loses its latest scripts
  --workload doors          for --seed and --seeds: programs that have only this
  --mutant clientClock      with this bug: for --seed, --seeds, --storm and --isolation one, for --mutants several
  --processes 2             how many at once, default one for each core
  --json                    the last line is JSON
`;
