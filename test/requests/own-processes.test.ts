// `outlive work` sends requests in separate processes: no handler runs there.
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import type { ServerResponse } from "node:http";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { open } from "../../src/index.ts";
import { Fleet } from "../supervisor/fleet.ts";
import { untilTrue } from "../support/processes.ts";
import { again, KINDS } from "./kinds.ts";
import { Receiver } from "./server.ts";

const MODULE = fileURLToPath(new URL("./kinds.ts", import.meta.url));

test("HR-16 HR-21 under `outlive work` requests have separate processes, which are started again and send again after a death", async (t) => {
  const held: ServerResponse[] = [];
  let isOpen = false;
  const receiver = await Receiver.start(t, (_, response) => {
    if (isOpen) response.end("fine");
    else held.push(response);
  });
  const fleet = new Fleet(t);
  const env = { OUTLIVE_TEST_RECEIVER: receiver.url, OUTLIVE_TEST_EFFECTS: fleet.effects };
  const work = fleet.work({ globs: [MODULE], args: ["--concurrency", "again=50,again.response=2"], env });
  const [handlers, sending] = await work.said(/ works on /, 2);
  assert.match(handlers!.message, /works on again\.response, again\.error, once\.response/);
  assert.match(sending!.message, /works on again, once, asking$/);
  const engine = await open(fleet.place.url, { jobs: KINDS, logger: false });
  t.after(() => engine.close());
  const { id } = await engine.enqueue(again, 1);
  await receiver.until(() => receiver.received.length === 1);
  isOpen = true;
  process.kill(Number(sending!["pid"]), "SIGKILL");
  await receiver.until(() => receiver.received.length === 2);
  const effects = (): string => (existsSync(fleet.effects) ? readFileSync(fleet.effects, "utf8") : "");
  await untilTrue(effects, (text) => text.includes("response"), "the callback");
  assert.equal(effects(), `response ${id} fine\n`);
  const [sentAgain] = await work.said(/^request .* is sent again to 127\.0\.0\.1:\d+ by attempt 2/);
  const { jobId, kind, host, worker } = sentAgain as Record<string, unknown>;
  assert.deepEqual([jobId, kind, host], [id, "again", new URL(receiver.url).host]);
  assert.match(String(worker), new RegExp(`-${String(sending!["pid"])}-`));
  const line = `request ${id} (again) is sent again to ${String(host)} by attempt 2: worker ${String(worker)} died or lost contact`;
  assert.equal(sentAgain!.message, line);
  const [, , next] = await work.said(/ works on /, 3);
  assert.match(next!.message, /works on again, once, asking$/);
  work.kill("SIGTERM");
  assert.deepEqual(await work.exited, { code: 0, signal: null });
});
