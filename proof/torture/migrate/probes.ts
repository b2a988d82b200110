// Sessions that do, every few milliseconds, what workers and clients do with a store, and note how long each transaction took.
import { setTimeout as pause } from "node:timers/promises";
import pg from "pg";

export interface Probe {
  readonly name: string;
  readonly text: string;
}

/** In a form that every version of the schema has. */
export const PROBES: readonly Probe[] = [
  { name: "enqueue", text: `SELECT created FROM outlive.enqueue('ship', '{"item":"a probe"}')` },
  {
    name: "claim",
    text: `UPDATE outlive.jobs j SET state = 1, fence = j.fence + 1, worker = f.seq, epoch = (SELECT value FROM outlive.meta WHERE key = 'epoch')
      FROM outlive.fleet f WHERE f.seq = 1 AND j.seq = (SELECT w.seq FROM outlive.jobs w WHERE w.kind = 6 AND w.state = 0 AND w.lane = 1
      ORDER BY w.priority DESC, w.seq LIMIT 1 FOR UPDATE SKIP LOCKED)`,
  },
  {
    name: "settle",
    text: `BEGIN; UPDATE outlive.jobs SET state = 2, outcome = 0 WHERE seq = (SELECT seq FROM outlive.jobs WHERE state = 1 AND worker = 1 LIMIT 1);
      INSERT INTO outlive.history (job, at, epoch, fence, from_state, to_state, event, actor, reason) VALUES (1, 1, 1, 1, 1, 2, 'probe', 'probe', 'probe');
      INSERT INTO outlive.steps (job, at, fence, name) VALUES (1, 1, 1, gen_random_uuid()::text); COMMIT`,
  },
  { name: "heartbeat", text: "UPDATE outlive.fleet SET beats = beats + 1 WHERE seq = 2" },
  {
    name: "recovery",
    text: "SELECT count(*) FROM outlive.incidents i JOIN outlive.incident_jobs j ON j.incident = i.id WHERE i.id = 'large-1'",
  },
];

export interface Wait {
  readonly probe: string;
  readonly at: number;
  readonly ms: number;
}

export interface Probing {
  readonly waits: readonly Wait[];
  /** Statements that the server refused, with its words. */
  readonly refused: readonly string[];
  stop(): Promise<void>;
}

const EVERY_MS = 20;

export async function probe(url: string): Promise<Probing> {
  const waits: Wait[] = [];
  const refused: string[] = [];
  const stopped = new AbortController();
  const sessions = await Promise.all(
    PROBES.map(async (one) => {
      const client = new pg.Client({ connectionString: url });
      await client.connect();
      return { client, running: run(client, one) };
    }),
  );
  async function run(client: pg.Client, { name, text }: Probe): Promise<void> {
    while (!stopped.signal.aborted) {
      const at = performance.now();
      try {
        await client.query(text);
      } catch (thrown) {
        refused.push(`${name}: ${(thrown as Error).message}`);
        await client.query("ROLLBACK");
      }
      waits.push({ probe: name, at, ms: performance.now() - at });
      await pause(EVERY_MS);
    }
  }
  return {
    waits,
    refused,
    async stop() {
      stopped.abort();
      for (const { client, running } of sessions) {
        await running;
        await client.end();
      }
    },
  };
}
