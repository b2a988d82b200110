// The texts of a worker's turn. $1 is the worker's number, $2 its id, $3 what keeps it from claiming (0: jobs that are due, and suspects; 1: jobs that are due; 2: nothing),
// $4 its kind or kinds, $5 its room for all of them; then come the rooms of several kinds, and then what is settled.
import { isIntactSql } from "./checksums.ts";
import { isRowOf, MARK_HOLDS } from "./restore-mark.ts";
import { OWNED, RESULT_SUM } from "./settle.ts";

const SETTLE_ARRAYS = ["bigint", "int", "bigint", "text"];

/** The successes, whose four arrays begin with parameter `first`. `me` has a row if the worker is registered in this very store. */
const settled = (first: number): string => `settled AS (
    UPDATE outlive.jobs j SET state = 2, outcome = 0, finished_at = clock.now, result = a.result, ${RESULT_SUM("a.result")}
    FROM clock, me, (SELECT *, $1::bigint AS worker
      FROM unnest(${SETTLE_ARRAYS.map((type, i) => `$${first + i}::${type}[]`).join(", ")}) AS u (seq, fence, epoch, result)) a
    WHERE ${OWNED} RETURNING j.seq)`;

/** Null: all of them. */
const whichSettled = (first: number): string =>
  `(SELECT CASE WHEN count(*) < cardinality($${first}::bigint[]) THEN coalesce(string_agg(seq::text, ' '), '') END FROM settled)`;

const CLOCK = "clock AS MATERIALIZED (SELECT outlive.now_ms() AS now";

/** Null: it is not what was stored. A worker gets nothing more to carry and to compare than before. */
export const INTACT_INPUT = `CASE WHEN ${isIntactSql("j.input", "j.id", "j.input_sum")} THEN j.input END`;

interface Parts {
  /** The first parameter of what is settled; null: nothing is, and nobody waits until the claim is on disk. */
  readonly settle: number | null;
  readonly ready: string;
  readonly kind: string;
  readonly timeout: string;
  readonly headTimeout: string;
}

// One row if the worker is registered in this very store, with the epoch under which it may claim: both are found with one step each.
const ME = `SELECT f.state, m.value AS epoch, coalesce((SELECT started FROM outlive.server_run WHERE one) = outlive.server_start(), false) AS lasts
    FROM outlive.fleet f, outlive.meta m WHERE ${isRowOf("$1", "$2")} AND m.key = 'epoch' AND ${MARK_HOLDS}`;

// The worker's row is locked against recovery until the claim is committed: FOR KEY SHARE waits for a recovery in progress and then
// sees its mark, but not for a heartbeat. greatest(): an open elsewhere may have raised the epoch after this snapshot was taken.
const turn = ({ settle, ready, kind, timeout, headTimeout }: Parts): string => `WITH
  ${CLOCK}${settle === null ? ", set_config('synchronous_commit', 'off', true)" : ""}),
  me AS MATERIALIZED (${ME} FOR KEY SHARE OF f),
  ${settle === null ? "" : `${settled(settle)},`}
  due AS MATERIALIZED (SELECT run_at - clock.now AS ms FROM clock, outlive.jobs WHERE state = 0 AND lane = 0 ORDER BY run_at LIMIT 1),
  suspect AS MATERIALIZED (SELECT 1 FROM outlive.jobs WHERE state = 0 AND lane = 2 LIMIT 1),
  may AS MATERIALIZED (SELECT EXISTS (SELECT 1 FROM me WHERE state = 'live' AND lasts)
    AND ($3::int = 2 OR NOT (EXISTS (SELECT 1 FROM due WHERE ms <= 0) OR $3 = 0 AND EXISTS (SELECT 1 FROM suspect))) AS claim),
  ready AS MATERIALIZED (${ready}),
  taken AS (
    UPDATE outlive.jobs j SET state = 1, worker = $1, epoch = greatest(j.epoch, me.epoch), fence = j.fence + 1, started_at = clock.now,
      deadline_at = clock.now + ready.timeout_ms
    FROM ready, clock, me WHERE j.ctid = ready.tid
    RETURNING j.seq, j.id, nullif(j.fence, 1), nullif(j.priority, 0)::bigint, ${kind}, nullif(j.epoch, me.epoch), ${timeout}, ${INTACT_INPUT})
  SELECT NULL::bigint, ${settle === null ? "NULL::text" : whichSettled(settle)},
    coalesce((SELECT (state = 'live')::int + 4 * (NOT lasts)::int FROM me), 0) + 2 * EXISTS (SELECT 1 FROM suspect)::int,
    ${headTimeout}, NULL::int, (SELECT epoch FROM me), (SELECT ms FROM due),
    (SELECT json_agg(json_build_object('id', j.id, 'seq', c.job, 'runs', coalesce(j.state = 1 AND j.worker = c.worker AND j.cancel_requested, false)))
      FROM outlive.cancels c LEFT JOIN outlive.jobs j ON j.seq = c.job WHERE c.worker = $1)::text
  UNION ALL SELECT * FROM taken`;

const ofOne = (settle: number | null): string =>
  turn({
    settle,
    kind: "NULL::int",
    timeout: "NULL::bigint",
    headTimeout: "(SELECT timeout_ms FROM ready LIMIT 1)",
    ready: `
    SELECT j.ctid AS tid, (SELECT timeout_ms FROM outlive.kinds WHERE id = $4) AS timeout_ms FROM outlive.jobs j
    WHERE j.kind = $4 AND j.state = 0 AND j.lane = 1 AND (SELECT claim FROM may)
      AND NOT (SELECT paused FROM outlive.kinds WHERE id = $4)
    ORDER BY j.priority DESC, j.seq LIMIT $5 FOR UPDATE SKIP LOCKED`,
  });

// The best of all kinds by (priority, age), each within its own room. What was locked and not taken is free again at the commit.
const ofMany = (settle: number | null): string =>
  turn({
    settle,
    kind: "j.kind",
    timeout: "ready.timeout_ms",
    headTimeout: "NULL::bigint",
    ready: `
    SELECT tid, timeout_ms FROM (
      SELECT r.tid, r.priority, r.seq, k.timeout_ms, k.shares, k.room, row_number() OVER (PARTITION BY k.shares ORDER BY r.priority DESC, r.seq) AS nth
      FROM (
        SELECT o.kind, o.room, o.shares, k.timeout_ms FROM unnest($4::int[], $6::int[], $7::boolean[]) AS o (kind, room, shares)
        JOIN outlive.kinds k ON k.id = o.kind WHERE NOT k.paused
      ) k CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.priority, j.seq FROM outlive.jobs j
        WHERE j.kind = k.kind AND j.state = 0 AND j.lane = 1 AND (SELECT claim FROM may)
        ORDER BY j.priority DESC, j.seq LIMIT least(k.room, $5::int) FOR UPDATE SKIP LOCKED
      ) r
    ) c WHERE NOT shares OR nth <= room ORDER BY priority DESC, seq LIMIT $5`,
  });

/** Settles and claims; the second half of the parameters is what is settled. */
export const TURN = { ofOne: ofOne(6), ofMany: ofMany(8) } as const;
/** Claims and does not wait until that is on disk. */
export const CLAIM = { ofOne: ofOne(null), ofMany: ofMany(null) } as const;
/** Settles: the worker's number and id, and the four arrays. */
export const SETTLE = `WITH ${CLOCK}), me AS MATERIALIZED (${ME}), ${settled(3)} SELECT ${whichSettled(3)}`;
