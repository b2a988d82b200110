// C20: the default logger wrote line breaks, escape sequences and secrets as they were.
import assert from "node:assert/strict";
import { test } from "node:test";
import { consoleLogger } from "../../src/telemetry/log.ts";
import { script } from "../engine/engines.ts";
import { attemptsAllowed } from "../support/former-names.ts";

test("C20: the default logger writes one line per message, without control characters and secrets", (t) => {
  const lines: unknown[][] = [];
  for (const method of ["error", "warn"] as const)
    t.mock.method(console, method, (...args: unknown[]) => void lines.push(args));
  const message =
    "boom\r\nforged\u001b]0;title\u0007\u009b2J\u0085\u2028 %s password=hunter2 postgres://me:hunter2@db/x";
  for (const level of ["info", "warn", "error"] as const) consoleLogger[level](message, { more: 1 });
  const line =
    "[outlive] boom\\x0d\\nforged\\x1b]0;title\\x07\\x9b2J\\x85\\u2028 %s password=[redacted] postgres://me:[redacted]@db/x";
  assert.deepEqual(lines, [[line], [line], [line]]);
});

test("C20: an error that a handler throws can't forge a line of a program's log or steer its terminal", async () => {
  const { stderr, code } = await script(`
    const { job, open } = await import(SRC + "index.ts");
    const forges = job("forges", { retry: ${JSON.stringify(attemptsAllowed(1))} }).handle(() => {
      throw new Error("boom\\n[outlive] all is well\\u001b[2K token=hunter2");
    });
    const engine = await open("sqlite::memory:", { jobs: [forges] });
    await engine.enqueue(forges, null);
    await (engine.runUntilIdle ?? engine.drain).call(engine);
    await engine.close();
  `);
  assert.equal(code, 0, stderr);
  // Without what is logged about the recovery of `open`, which found nothing: one line, and two in earlier versions.
  const lines = stderr
    .trimEnd()
    .split("\n")
    .filter(
      (line) => !/^\[outlive\] (start-up recovery|recovery \w+ by open)( started$|: nothing to recover)/.test(line),
    );
  assert.match(
    lines[0]!,
    /^\[outlive\] attempt 1 of job \S+ \(forges\) failed: boom\\n\[outlive\] all is well\\x1b\[2K/,
  );
  assert.deepEqual(
    lines.filter((line) => !/^\[outlive\] (attempt|job) /.test(line) || /hunter2|\p{Cc}/u.test(line)),
    [],
  );
});
