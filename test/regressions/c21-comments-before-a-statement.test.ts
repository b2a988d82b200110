// C21: a statement that began with many block comments took exponential time on its way into a transaction: 22 of them 83 ms, 26 of
// them 1.5 s, 40 of them hours.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { runUserBody } from "../../src/stores/postgres/transaction.ts";

if (process.argv[2] === "ask") await ask();
else
  for (const [what, comments] of [
    ["block comments", "/* */".repeat(40)],
    ["a hundred thousand comments of both kinds", "/* a */-- b\n".repeat(50_000)],
  ] as const)
    test(`C21: a statement after ${what} reaches the server in linear time`, async (t) => {
      // In a separate process: a regular expression can't be interrupted.
      const child = fork(fileURLToPath(import.meta.url), ["ask"], {
        execArgv: ["--disable-warning=ExperimentalWarning"],
      });
      t.after(() => child.kill("SIGKILL"));
      child.send(comments);
      const late = setTimeout(() => child.kill("SIGKILL"), 15_000);
      const asked = await Promise.race([
        once(child, "message").then(([message]) => message as string),
        once(child, "exit").then(() => "still looking at the comments after 15 s"),
      ]);
      clearTimeout(late);
      assert.equal(asked, "asked");
    });

/** Sends one statement through a callback's handle, to a server that is not there. */
async function ask(): Promise<void> {
  const [comments] = (await once(process, "message")) as [string];
  const rows = [{ id: "1" }];
  const client = { query: async () => ({ rows, rowCount: 1 }) };
  const session = { id: "1", client, rows: async () => rows, arrays: async () => [], run: async () => 0 };
  await runUserBody({ kinds: null as never, newId: () => "" }, session as never, async (tx) => {
    await tx.query(`${comments}SELECT 1`);
  });
  process.send!("asked", () => process.disconnect());
}
