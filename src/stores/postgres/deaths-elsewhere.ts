// How many workers died without holding a job, since its first counted crash or within the last while: what isolation.ts weighs a death
// against. The reclaim in plain SQL has a copy of it, which is frozen with its migration (migrations/frozen.ts).
import { BACKGROUND_MS } from "../../core/isolation.ts";

/** A loss of contact counts once it has turned out to be a death, and a death from the moment that its worker is condemned. `own` is the incident in question. `job`, `crashes`, `now` and `own` are SQL. The last `crashes` crashes in the history count: a step or a retry by hand has set the counters back before them. */
export function deathsElsewhere(schema: string, job: string, crashes: string, now: string, own: string): string {
  return `(SELECT count(*)::integer FROM ${schema}.incidents i
    WHERE i.id IS DISTINCT FROM ${own} AND (i.how = 'gone' OR i.resolution IN ('died', 'away'))
    AND (i.completed_at IS NULL OR i.completed_at >= least(${now} - ${BACKGROUND_MS}, coalesce((SELECT min(c.at) FROM
      (SELECT h.at FROM ${schema}.history h WHERE h.job = ${job} AND h.event IN ('crash', 'countLoss') ORDER BY h.ord DESC LIMIT ${crashes}) c), ${now})))
    AND NOT EXISTS (SELECT 1 FROM ${schema}.incident_jobs x WHERE x.incident = i.id AND x.job = ${job}))`;
}
