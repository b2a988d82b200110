// The kinds of the recorded programs. The same handlers finish the work in the check of a state, where nothing listens and nothing
// dies: both are parameters.
import { job, type Run } from "../../../src/index.ts";
import { sqlite } from "../../../src/sqlite.ts";
import type { Say } from "./word.ts";

/** The user's own tables, without any constraint that could hide a double. */
export const USER_TABLES =
  "CREATE TABLE IF NOT EXISTS ledger (job TEXT, n INTEGER); CREATE TABLE IF NOT EXISTS orders (job TEXT)";

const retry = { backoff: { base: "1ms", max: "5ms" } } as const;

export type Kinds = ReturnType<typeof makeKinds>;

/** `die` ends the process in the middle of a handler, or does nothing. */
export function makeKinds(say: Say, die: () => void) {
  const claimed = (run: Run): void =>
    say({ said: "claimed", id: run.id, epoch: run.fence.epoch, fence: run.fence.number });

  /** Ends without a trace of its own but its settlement. */
  const note = job<{ text: string }>("note", { retry });
  note.handle((input, run) => {
    claimed(run);
    return input.text.length;
  });

  /** Moves one unit into the ledger, exactly once. */
  const transfer = job<{ n: number }>("transfer", { retry });
  transfer.handle(async (input, run) => {
    claimed(run);
    await run.commit(sqlite, (tx) => void tx.run("INSERT INTO ledger (job, n) VALUES (?, ?)", run.id, input.n));
    say({ said: "committed", id: run.id });
  });

  /** Two steps and a line of log between them. */
  const stepped = job<{ n: number }>("stepped", { retry });
  stepped.handle(async (input, run) => {
    claimed(run);
    for (const name of ["first", "second"]) {
      await run.step(name, () => ({ name, n: input.n }));
      say({ said: "step", id: run.id, name });
      await run.log(`after ${name}`);
    }
  });

  /** As `stepped`, but its first attempt takes the process with it after its first step. */
  const fatal = job<{ n: number }>("fatal", { retry });
  fatal.handle(async (input, run) => {
    claimed(run);
    await run.step("first", () => ({ name: "first", n: input.n }));
    say({ said: "step", id: run.id, name: "first" });
    if (run.attempt === 1) die();
    await run.commit(sqlite, (tx) => void tx.run("INSERT INTO ledger (job, n) VALUES (?, ?)", run.id, input.n));
    say({ said: "committed", id: run.id });
  });

  return { note, transfer, stepped, fatal };
}

/** Of these kinds a success and a row in the ledger are one transaction. */
export const COMMITTING_KINDS: ReadonlySet<string> = new Set(["transfer", "fatal"]);
