// Submissions of more than one script can take, and a connection that lets a test strike between two of them.
import { blockId, type BlockDraft, encodeBlock } from "../../src/job/batches.ts";
import type { JobDraft } from "../../src/job/job.ts";
import { FAIR, jobKey } from "../../src/job/limits.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { Store } from "../../src/stores/port.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { Connection } from "../../src/stores/redis/connection.ts";
import type { Reply } from "../../src/stores/redis/driver.ts";
import type { ScriptName } from "../../src/stores/redis/scripts.ts";
import { redisStore } from "../../src/stores/redis/store.ts";
import { batchDraft } from "../../src/testing/conformance/batch-fixture.ts";
import { draft, kind } from "../../src/testing/conformance/fixture.ts";

export const BATCH = "b";
export const ROWS_PER_BLOCK = 3;
export const BLOCKS = 120;
export const JOBS = 600;

class StruckConnection extends Connection {
  #calls = 0;
  readonly #before: (call: number, script: ScriptName) => Promise<void>;

  constructor(url: string, before: (call: number, script: ScriptName) => Promise<void>) {
    super({ address: redisAddress(url), random: systemRandom, clock: systemClock });
    this.#before = before;
  }

  override async eval(name: ScriptName, args: readonly string[] = []): Promise<Reply> {
    await this.#before(this.#calls++, name);
    return super.eval(name, args);
  }
}

/** `before`: called before each script with how many there were. */
export function struckStore(
  url: string,
  before: (call: number, script: ScriptName) => Promise<void> = async () => {},
): Store {
  return redisStore({ connection: new StruckConnection(url, before), clock: systemClock, wakeups: null });
}

export const SUBMISSIONS = {
  /** One call; whole or nothing. */
  jobs: async (store: Store): Promise<void> => {
    await store.declare([kind("mail")]);
    await store.enqueue(Array.from({ length: JOBS }, (_, n): JobDraft => draft(`job-${n}`)));
  },
  /** Appended in pieces; submitted again it goes on. */
  batch: async (store: Store): Promise<void> => {
    const batches = store.batches!;
    await store.declare([kind("mail", { fair: true }), kind("mail:done")]);
    await batches.open(batchDraft(BATCH, { blockRows: ROWS_PER_BLOCK }));
    const fair = jobKey(FAIR, BATCH);
    const blocks = Array.from({ length: BLOCKS }, (_, number): BlockDraft => {
      const rows = Array.from({ length: ROWS_PER_BLOCK }, (__, n) => ({ line: number * 3 + n + 1, input: "{}" }));
      const input = encodeBlock(BATCH, 1, number, rows);
      const job = draft({ id: blockId(BATCH, 1, number), input, keys: [fair], fair: fair.id });
      return { number, job, rows: ROWS_PER_BLOCK, rejected: [] };
    });
    await batches.append(BATCH, 1, blocks);
    await batches.seal(BATCH, 1);
  },
} as const;
