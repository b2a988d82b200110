// What an act gets: an engine that says what it was promised, and waits for facts. An act uses the engine as any user
// does; nothing in the engine knows that it is watched.
import { type Engine, type EngineOptions, open } from "../../../src/index.ts";
import { sqlite } from "../../../src/sqlite.ts";
import { type Kinds, makeKinds, USER_TABLES } from "./kinds.ts";
import type { Say } from "./word.ts";

export type Durability = "full" | "relaxed";

export class Stage {
  readonly path: string;
  readonly kinds: Kinds;
  readonly durability: Durability;
  readonly #say: Say;
  readonly #ended = new Set<string>();
  readonly #waiting = new Set<() => void>();

  constructor(path: string, durability: Durability, say: Say) {
    this.path = path;
    this.durability = durability;
    this.#say = say;
    this.kinds = makeKinds(say, () => process.kill(process.pid, "SIGKILL"));
  }

  get say(): Say {
    return this.#say;
  }

  async open(options: EngineOptions = {}): Promise<Engine> {
    const engine = await open(`sqlite:${this.path}`, {
      jobs: Object.values(this.kinds),
      logger: false,
      durability: this.durability,
      ...options,
    });
    this.#say({ said: "opened" });
    for (const { id } of await engine.incidents()) this.#say({ said: "recovered", incident: id });
    engine.on("job.succeeded", ({ jobId }) => {
      this.#say({ said: "settled", id: jobId });
      this.#ended.add(jobId);
      for (const hear of this.#waiting) hear();
    });
    return engine;
  }

  async makeTables(engine: Engine): Promise<void> {
    await engine.transaction(sqlite, (tx) => tx.exec(USER_TABLES));
  }

  async note(engine: Engine, id: string, text = `the text of ${id}`): Promise<string> {
    await engine.enqueue(this.kinds.note, { text }, { id });
    this.#say({ said: "enqueued", ids: [id] });
    return id;
  }

  async transfer(engine: Engine, id: string, n: number): Promise<string> {
    await engine.enqueue(this.kinds.transfer, { n }, { id });
    this.#say({ said: "enqueued", ids: [id] });
    return id;
  }

  async step(engine: Engine, id: string, n: number): Promise<string> {
    await engine.enqueue(this.kinds.stepped, { n }, { id });
    this.#say({ said: "enqueued", ids: [id] });
    return id;
  }

  /** Many jobs in one call, which is one transaction. */
  async bulk(engine: Engine, ids: readonly string[], text: (id: string) => string): Promise<readonly string[]> {
    this.#say({ said: "adding", ids });
    await engine.enqueueMany(
      this.kinds.note,
      ids.map((id) => ({ text: text(id) })),
      {
        each: (_, index) => ({ id: ids[index]! }),
      },
    );
    this.#say({ said: "enqueued", ids });
    return ids;
  }

  /** A row of the user's and a job, or neither. */
  async order(engine: Engine, id: string): Promise<string> {
    await engine.transaction(sqlite, (tx) => {
      tx.run("INSERT INTO orders (job) VALUES (?)", id);
      tx.enqueue(this.kinds.note, { text: `order ${id}` }, { id });
    });
    this.#say({ said: "ordered", id });
    return id;
  }

  /** Works until these have ended; an earlier process on the same file may have ended some of them. */
  async work(engine: Engine, ids: readonly string[], concurrency = 3): Promise<void> {
    for (const id of ids) if ((await engine.get(id))?.state === "succeeded") this.#ended.add(id);
    const worker = await engine.start({ concurrency });
    await this.untilEnded(ids);
    await worker.stop();
  }

  untilEnded(ids: readonly string[]): Promise<void> {
    return new Promise((resolve) => {
      const hear = (): void => {
        if (!ids.every((id) => this.#ended.has(id))) return;
        this.#waiting.delete(hear);
        resolve();
      };
      this.#waiting.add(hear);
      hear();
    });
  }
}

/** `a-1`, `a-2`, ... */
export function named(prefix: string, count: number): string[] {
  return Array.from({ length: count }, (_, n) => `${prefix}-${n + 1}`);
}
