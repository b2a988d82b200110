// The producer of the rig for collections, in the state in which a kill leaves it.
import assert from "node:assert/strict";
import { once } from "node:events";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import amqplib from "amqplib";
import { collection, open } from "../../src/index.ts";
import { rabbitmq } from "../../src/rabbitmq.ts";
import { confirmedIn, idOf, KIND } from "../../proof/torture/collections/plan.ts";
import type { Task } from "../../proof/torture/collections/worker.ts";
import { untilTrue } from "../support/processes.ts";
import { sharedRabbitmq } from "../support/rabbitmq.ts";

const PARTS = 3;

test("a producer that was killed while it sent a collection sends the rest of it, also if there were enough before it started again", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  t.after(() => rmSync(folder, { recursive: true, force: true, maxRetries: 10 }));
  const broker = await sharedRabbitmq();
  const own = rabbitmq(broker);
  await own.prepare({ kind: KIND, queues: "shared" }, "");
  await own.close();
  const model = await amqplib.connect(broker);
  const channel = await model.createChannel();
  t.after(async () => {
    for (const queue of ["header", "part", "parked"]) await channel.deleteQueue(`outlive.${KIND}.${queue}`);
    await model.close();
  });
  const task: Task = {
    role: "producer",
    url: `sqlite:${join(folder, "jobs.db")}`,
    blobs: join(folder, "blobs"),
    broker,
    parts: PARTS,
    acked: join(folder, "acked"),
    enough: join(folder, "enough"),
    atLeast: 1,
  };
  const scan = collection(KIND, { series: ["files"] });
  const engine = await open(task.url, { jobs: [scan], blobs: task.blobs, logger: false });
  t.after(() => engine.close());
  // The first was sent and confirmed, the second was opened.
  for (const n of [0, 1]) await engine.collect(scan, null, { id: idOf(n) });
  writeFileSync(task.acked, `${idOf(0)}\n`);
  writeFileSync(task.enough, "");

  const program = fileURLToPath(new URL("../../proof/torture/collections/worker.ts", import.meta.url));
  const args = ["--disable-warning=ExperimentalWarning", program, JSON.stringify(task)];
  const child = spawn(process.execPath, args, { stdio: ["ignore", "ignore", "inherit"] });
  assert.deepEqual(await once(child, "exit"), [0, null]);

  assert.equal(confirmedIn(task.acked), 2, "it has noted the second, and opened no third");
  for (const [queue, count] of [
    ["header", 1],
    ["part", PARTS],
  ] as const)
    await untilTrue(
      () => channel.checkQueue(`outlive.${KIND}.${queue}`),
      ({ messageCount }) => messageCount === count,
      `the broker has ${count} of it in the ${queue} queue`,
    );
});
