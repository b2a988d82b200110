// How many workers died without holding a job, since its first counted crash or within the last while: what blame.ts weighs a death
// against. One expression for the store and for the reclaim in plain SQL.
import { BACKGROUND_MS } from "../../core/blame.ts";

/** Which incidents are deaths: a loss of contact counts once it has turned out to be one. */
const DEATHS = { all: "", resolved: "(i.how = 'gone' OR i.resolution IN ('died', 'away')) AND " } as const;
/** Which entries of a job's history are crashes that were counted. */
const CRASHES = { all: "= 'crash'", resolved: "IN ('crash', 'countLoss')" } as const;

/** `of` "all" is the text of migration 2, from before losses of contact were told from deaths. `job`, `crashes` and `now` are SQL. The last `crashes` crashes in the history count: a step or a retry by hand has set the counters back before them. */
export function deathsElsewhere(
  schema: string,
  job: string,
  crashes: string,
  now: string,
  of: "all" | "resolved" = "resolved",
): string {
  return `(SELECT count(*)::integer FROM ${schema}.incidents i
    WHERE ${DEATHS[of]}i.completed_at >= least(${now} - ${BACKGROUND_MS}, coalesce((SELECT min(c.at) FROM
      (SELECT h.at FROM ${schema}.history h WHERE h.job = ${job} AND h.event ${CRASHES[of]} ORDER BY h.ord DESC LIMIT ${crashes}) c), ${now}))
    AND NOT EXISTS (SELECT 1 FROM ${schema}.incident_jobs x WHERE x.incident = i.id AND x.job = ${job}))`;
}
