// The log: one line per fact, as JSON or text, without secrets.
import assert from "node:assert/strict";
import { test } from "node:test";
import { jsonWriter, logEvent, prettyWriter, redact, redactText } from "../../src/telemetry/log.ts";

const now = (): number => Date.parse("2024-01-15T10:30:00.123Z");

function written(make: typeof jsonWriter, who = {}): { lines: string[]; log: ReturnType<typeof jsonWriter> } {
  const lines: string[] = [];
  return { lines, log: make({ write: (line) => void lines.push(line), now, who, colours: false }) };
}

test("a JSON line has time, level, message, its writer, and the data", () => {
  const { lines, log } = written(jsonWriter, { place: 2 });
  log.warn("job 7 failed", { jobId: "7", error: { message: "no", password: "x" }, level: "mine" });
  assert.deepEqual(lines, [
    '{"time":"2024-01-15T10:30:00.123Z","level":"warn","message":"job 7 failed","place":2,"jobId":"7","error":{"message":"no","password":"[redacted]"}}\n',
  ]);
});

test("a text line is one line, whatever the message holds", () => {
  const { lines, log } = written(prettyWriter, { place: 2 });
  log.error("a\nb\u001B[31mc\td", { more: 1 });
  log.info("plain");
  assert.deepEqual(lines, ["10:30:00.123Z error [2] a\\nb\\x1b[31mc d\n", "10:30:00.123Z info  [2] plain\n"]);
});

test("the places in the user's own code follow the line of an error, and no others", () => {
  const { lines, log } = written(prettyWriter);
  const ours = new URL("../../src/worker/attempt.js", import.meta.url).pathname;
  log.warn("attempt 1 failed", {
    error: {
      stack: `TypeError: no\n    at pay (file:///app/jobs/pay.ts:3:9)\n    at next (/app/node_modules/pg/lib/x.js:1:1)\n    at run (file://${ours}:9:1)\n    at process.processTicksAndRejections (node:internal/process/task_queues:104:5)\n    at async main (/app/main.ts:1:2)`,
    },
  });
  assert.deepEqual(lines, [
    "10:30:00.123Z warn  attempt 1 failed\n",
    "    at pay (file:///app/jobs/pay.ts:3:9)\n",
    "    at async main (/app/main.ts:1:2)\n",
  ]);
});

test("data that can't be JSON does not cost the line", () => {
  const { lines, log } = written(jsonWriter);
  const cycle: Record<string, unknown> = { big: 1n };
  cycle["self"] = cycle;
  log.info("all the same", { cycle });
  log.info("hostile", {
    get unreadable(): never {
      throw new Error("no");
    },
  });
  assert.equal(lines.length, 2);
  for (const line of lines) assert.equal((JSON.parse(line) as { level: string }).level, "info");
});

test("values under keys that look like secrets are taken out, at any depth", () => {
  const secrets = [
    "password",
    "PASSWORD",
    "dbPassword",
    "passwd",
    "client_secret",
    "accessToken",
    "x-api-key",
    "apiKey",
  ];
  for (const key of [...secrets, "Authorization", "set-cookie", "privateKey", "credentials", "session_id"])
    assert.deepEqual(redact({ a: [{ [key]: "hunter2" }] }), { a: [{ [key]: "[redacted]" }] }, key);
  const plain = { jobId: "1", kind: "mail", key: "k", worker: "w", at: 5, none: null, flag: true };
  assert.deepEqual(redact(plain), plain);
  assert.deepEqual(redact({ token: null }), { token: null });
});

test("what looks like a secret inside a text is taken out", () => {
  for (const [text, expected] of [
    ["connect to postgres://me:hunter2@db/x failed", "connect to postgres://me:[redacted]@db/x failed"],
    ["password=hunter2 user=me", "password=[redacted] user=me"],
    ['{"apiKey":"abc","n":1}', '{"apiKey":[redacted],"n":1}'],
    ["Authorization: Bearer abcdef.ghi", "Authorization: Bearer [redacted]"],
    ["authorization: Basic YWJjOmRlZg==", "authorization: Basic [redacted]"],
    ["GET /?token=abc&x=1", "GET /?token=[redacted]&x=1"],
    ["a basic question about tokens", "a basic question about tokens"],
    ["worker host-1-a tried succeed on job 7", "worker host-1-a tried succeed on job 7"],
  ] as const) {
    assert.equal(redactText(text), expected);
    assert.equal(redactText(expected), expected, "twice is as good as once");
  }
});

test("a long text is redacted in linear time, whatever it is made of", () => {
  for (const part of [
    "a.",
    "://",
    "://a:",
    "bearer ",
    "password",
    "password= ",
    "token='",
    'cookie="',
    "authorization:  ",
  ]) {
    const text = part.repeat(200_000 / part.length);
    const began = performance.now();
    redactText(text);
    assert.ok(performance.now() - began < 2_000, `${JSON.stringify(part)}, over and over`);
  }
});

test("a recovery that took no job has no line of its own: the death is logged once, by the process that found it first", () => {
  const lines: string[] = [];
  const add = (message: string): void => void lines.push(message);
  const logger = { info: add, warn: add, error: add };
  const pass = { recovery: "r1", by: "vm-2", durationMs: 5, failed: 0 };
  logEvent(logger, { name: "recovery.started", recovery: "r1", by: "vm-2", workers: 1 }, true);
  logEvent(logger, { name: "recovery.completed", ...pass, incidents: ["i1"], jobs: 0 }, true);
  assert.deepEqual(lines, []);
  logEvent(logger, { name: "worker.gone", worker: "vm-1", how: "gone", incident: "i1", evidence: null }, true);
  logEvent(logger, { name: "recovery.completed", ...pass, incidents: ["i1"], jobs: 1 }, true);
  logEvent(logger, { name: "recovery.started", recovery: "r2", by: "open", workers: 2 }, true);
  assert.deepEqual(lines, [
    "worker vm-1 is gone; incident i1",
    "recovery r1 by vm-2: 1 dead worker, 1 job, 0 failed, 5 ms",
    "recovery r2 by open started: 2 dead workers",
  ]);
});
