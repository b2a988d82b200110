// The history of jobs: one row for everything abnormal. Instants are the store's own.
import { BACKGROUND_MS } from "../../job/isolation.ts";
import { list, type Session, texts } from "./statements.ts";

export interface HistoryRow {
  readonly job: number;
  readonly event: string;
  /** Codes of states. */
  readonly from: number;
  readonly to: number;
  readonly actor: string;
  readonly epoch: number;
  readonly fence: number;
  readonly reason: string;
  readonly incident: string | null;
}

const INSERT = `INSERT INTO outlive.history (job, at, event, from_state, to_state, actor, epoch, fence, reason, incident)
  SELECT h.job, clock.now, h.event, h.from_state, h.to_state, h.actor, h.epoch, h.fence, h.reason, h.incident
  FROM (SELECT outlive.now_ms() AS now) AS clock,
    unnest($1::bigint[], $2::text[], $3::smallint[], $4::smallint[], $5::text[], $6::bigint[], $7::int[], $8::text[], $9::text[]) WITH ORDINALITY
      AS h (job, event, from_state, to_state, actor, epoch, fence, reason, incident, ord) ORDER BY h.ord`;

export async function insertHistory(session: Session, rows: readonly HistoryRow[]): Promise<void> {
  if (rows.length === 0) return;
  await session.run(INSERT, [
    list(rows.map(({ job }) => job)),
    texts(rows.map(({ event }) => event)),
    list(rows.map(({ from }) => from)),
    list(rows.map(({ to }) => to)),
    texts(rows.map(({ actor }) => actor)),
    list(rows.map(({ epoch }) => epoch)),
    list(rows.map(({ fence }) => fence)),
    texts(rows.map(({ reason }) => reason)),
    texts(rows.map(({ incident }) => incident)),
  ]);
}

// How many workers died without holding a job, since its first counted crash or within the last while: what isolation.ts weighs a death
// against. The reclaim in plain SQL has a copy of it, which is frozen with its migration (migrations/frozen.ts).

/** A loss of contact counts once it has turned out to be a death, and a death from the moment that its worker is condemned. `own` is the incident in question. `job`, `crashes`, `now` and `own` are SQL. The last `crashes` crashes in the history count: a step or a retry by hand has set the counters back before them. */
export function deathsElsewhere(schema: string, job: string, crashes: string, now: string, own: string): string {
  return `(SELECT count(*)::integer FROM ${schema}.incidents i
    WHERE i.id IS DISTINCT FROM ${own} AND (i.how = 'gone' OR i.resolution IN ('died', 'away'))
    AND (i.completed_at IS NULL OR i.completed_at >= least(${now} - ${BACKGROUND_MS}, coalesce((SELECT min(c.at) FROM
      (SELECT h.at FROM ${schema}.history h WHERE h.job = ${job} AND h.event IN ('crash', 'countLoss') ORDER BY h.ord DESC LIMIT ${crashes}) c), ${now})))
    AND NOT EXISTS (SELECT 1 FROM ${schema}.incident_jobs x WHERE x.incident = i.id AND x.job = ${job}))`;
}
