// The history of jobs: one row for everything abnormal. Instants are the store's own.
import { list, type Session, texts } from "./connection.ts";

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
