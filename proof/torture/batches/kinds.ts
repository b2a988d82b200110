// The batches that the rig's processes submit and run.
import { setTimeout as pause } from "node:timers/promises";
import { batch, TerminalError } from "../../../src/index.ts";
import { say } from "./history.ts";
import { FILE, type Input, type KindName, textOf } from "./plan.ts";
import type { Tables } from "./tables.ts";

const retry = { attempts: 3, backoff: { base: "10ms", max: "50ms" } } as const;

/** Refuses what is meant to be refused. */
const row = {
  "~standard": {
    version: 1,
    vendor: "torture",
    validate: (value: unknown) =>
      (value as Input).role === "invalid" ? { issues: [{ message: "it is meant to be invalid" }] } : { value },
    types: undefined as unknown as { readonly input: Input; readonly output: Input },
  },
} as const;

/** Blocks that are small, so that a batch of 1,000 rows needs several appends and many claims. */
const kinds = {
  rows: batch("rows", { row, block: 20, retry }),
  careful: batch("careful", { row, block: 10, mark: "row", retry }),
  commits: batch("commits", { row, block: 10, atOnce: 3, retry }),
  blocks: batch("blocks", { row, block: 25, retry }),
} satisfies Record<KindName, unknown>;

export const KINDS = Object.values(kinds);

export function kindOf(name: KindName): (typeof kinds)[KindName] {
  return kinds[name];
}

/** What a row does before it ends: long enough that a kill falls into some, short enough that a thousand of them take a second. */
async function work({ n, role }: Input, attempt: number): Promise<void> {
  if (role === "poison") process.kill(process.pid, "SIGKILL");
  if (n % 7 === 0) await pause(n % 5);
  if (role === "bad") throw new TerminalError("it is meant to fail");
  if (role === "stubborn" || (role === "flaky" && attempt === 1)) throw new Error("it fails");
}

/** Attaches the handlers. Only workers do. */
export function attach(tables: Tables): void {
  for (const kind of [kinds.rows, kinds.careful, kinds.commits])
    kind.handle(async (each, run) => {
      const { input } = each;
      say({ what: "run", key: input.batch, n: input.n, attempt: `${run.id} ${run.attempt}` });
      await work(input, run.attempt);
      if (textOf(input) !== "") run.write(FILE, textOf(input));
      if (kind === kinds.commits) await tables.commitRow(each, [input.batch, input.n]);
    });
  kinds.blocks.handleBlock(async (rows, run) => {
    for (const { input } of rows) {
      if (input.n % 7 === 0) await pause(input.n % 5);
      if (input.role === "flaky" && run.attempt === 1) throw new Error("it fails");
    }
    for (const each of rows) {
      if (each.input.role === "bad") run.fail(each, new TerminalError("it is meant to fail"));
      else if (textOf(each.input) !== "") each.write(FILE, textOf(each.input));
    }
    await tables.commitBlock(
      run,
      run.remaining.map(({ input: { batch: of, n } }) => [of, n] as const),
    );
  });
  for (const kind of KINDS) kind.done((end, run) => tables.commitDone(run, [end.id, end.round]));
}
