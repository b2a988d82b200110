// The floor on PostgreSQL: the least SQL that a durable batched claim and settle needs. One narrow table, its key, one partial index
// of what is ready; one statement per batch settles the last one under its fence, which all of it has in common, and claims the next. Nothing else: no
// JSON, no handlers, no worker that might be dead. It must stay as fast as it can be made, or our ratios lie.
import { Client } from "pg";

const TABLE = `
  CREATE TABLE IF NOT EXISTS floor_jobs (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at bigint NOT NULL DEFAULT 0,
    deadline_at bigint NOT NULL DEFAULT 0,
    kind integer NOT NULL,
    priority integer NOT NULL,
    worker integer NOT NULL DEFAULT 0,
    fence integer NOT NULL DEFAULT 0,
    state smallint NOT NULL DEFAULT 0,
    payload text NOT NULL
  );
  CREATE INDEX IF NOT EXISTS floor_ready ON floor_jobs (kind, priority DESC, seq) WHERE state = 0`;

const KIND = 1;
const WORKER = 1;
const TIMEOUT_MS = 900_000;

/** As our own sessions: plans are made while the table is empty and kept. */
const SETTINGS =
  "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan";

/** One scan of all rows of a batch for each: joins that read row by row took 11.8 instead of 9.6 µs of the server's CPU for a job. */
const TURN = `WITH settled AS (
    UPDATE floor_jobs j SET state = 2 WHERE j.seq = ANY ($1::bigint[]) AND j.state + 0 = 1 AND j.fence = $2::int AND j.worker = ${WORKER} RETURNING 1),
  taken AS (
    UPDATE floor_jobs j SET state = 1, worker = ${WORKER}, fence = j.fence + 1, started_at = $4::bigint, deadline_at = $4::bigint + ${TIMEOUT_MS}
    WHERE j.ctid = ANY (ARRAY(
      SELECT ctid FROM floor_jobs WHERE kind = ${KIND} AND state = 0 ORDER BY priority DESC, seq LIMIT $3 FOR UPDATE SKIP LOCKED))
    RETURNING j.seq, j.fence, j.payload)
  SELECT NULL::bigint, (SELECT count(*) FROM settled)::int, NULL UNION ALL SELECT * FROM taken`;

/** The first row: nothing but how many were settled. */
type Row = readonly [seq: string | null, fenceOrCount: number, payload: string];

export class FloorQueue {
  readonly #client: Client;

  private constructor(client: Client) {
    this.#client = client;
  }

  static async open(url: string): Promise<FloorQueue> {
    return new FloorQueue(await connected(url, TABLE));
  }

  async fill(count: number): Promise<void> {
    await this.#client.query(
      `INSERT INTO floor_jobs (kind, priority, payload) SELECT ${KIND}, 0, format('{"n":%s}', n) FROM generate_series(1, $1::int) AS n`,
      [count],
    );
  }

  /** Runs the queue empty; `done` hears the size of each batch when it is settled durably. */
  async drain(batchSize: number, done: (count: number) => void): Promise<void> {
    let held: Row[] = [];
    for (;;) {
      const { rows } = await this.#client.query<Row[]>({
        name: "turn",
        text: TURN,
        rowMode: "array",
        values: [list(held.map(([seq]) => seq!)), held[0]?.[1] ?? 0, batchSize, Date.now()],
      } as never);
      const next = rows as unknown as Row[];
      const [head] = next.splice(
        next.findIndex(([seq]) => seq === null),
        1,
      );
      if (head![1] !== held.length) throw new Error("the floor lost a job");
      if (held.length > 0) done(held.length);
      if (next.length === 0) return;
      held = next;
    }
  }
}

const INSERT_TABLE = `
  CREATE TABLE IF NOT EXISTS floor_inserts (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at bigint NOT NULL,
    kind integer NOT NULL,
    priority integer NOT NULL,
    state smallint NOT NULL DEFAULT 0,
    id text COLLATE "C" NOT NULL UNIQUE,
    payload text NOT NULL
  );
  CREATE INDEX IF NOT EXISTS floor_inserts_ready ON floor_inserts (kind, priority DESC, seq) WHERE state = 0`;

const INSERT = `INSERT INTO floor_inserts (kind, priority, created_at, id, payload)
  SELECT ${KIND}, 0, $1, id, payload FROM unnest($2::text[], $3::text[]) AS a (id, payload)`;

/** Raw durable inserts of what a job needs: an id that is unique, and a place in the index of what is ready. */
export class FloorInserts {
  readonly #client: Client;
  #ids = 0;

  private constructor(client: Client) {
    this.#client = client;
  }

  static async open(url: string): Promise<FloorInserts> {
    return new FloorInserts(await connected(url, INSERT_TABLE));
  }

  /** `count` rows, `batchSize` of them in each statement. Ids grow, as ours do, and are as long. */
  async insert(count: number, batchSize: number, payloadOf: (n: number) => string): Promise<void> {
    for (let from = 0; from < count; from += batchSize) {
      const ns = Array.from({ length: Math.min(batchSize, count - from) }, (_, i) => from + i);
      const ids = list(ns.map(() => String(this.#ids++).padStart(22, "0")));
      const payloads = list(ns.map((n) => JSON.stringify(payloadOf(n))));
      await this.#client.query({ name: "insert", text: INSERT, values: [Date.now(), ids, payloads] });
    }
  }
}

async function connected(url: string, table: string): Promise<Client> {
  const client = new Client({ connectionString: url });
  await client.connect();
  await client.query(SETTINGS);
  await client.query(table);
  return client;
}

/** An array as PostgreSQL writes it: cheaper than what the driver makes of one. */
function list(values: readonly (number | string)[]): string {
  return `{${values.join(",")}}`;
}
