// A host that is gone without a word: no process there closes its connections, and no packet says that they are closed. Needs root and network namespaces.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test, type TestContext } from "node:test";
import { slow } from "../support/jobs.ts";
import { connect } from "../../src/stores/redis/driver.ts";
import { ownRedis } from "../support/redis.ts";
import { RedisPlace, SHORT } from "./place.ts";

const ip = (...args: readonly string[]): boolean => spawnSync("ip", args, { stdio: "ignore" }).status === 0;

/** A namespace that is joined with this one by a cable, and the addresses at its ends; null: none may be made here. */
function otherHost(t: TestContext): { readonly name: string; readonly near: string; unplug(): void } | null {
  const name = `outlive-${process.pid}`;
  const [here, there] = [`ol${process.pid}a`, `ol${process.pid}b`];
  const net = `10.201.${process.pid % 250}`;
  t.after(() => {
    ip("link", "del", here);
    ip("netns", "del", name);
  });
  const isMade =
    ip("netns", "add", name) &&
    ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name) &&
    ip("address", "add", `${net}.1/30`, "dev", here) &&
    ip("link", "set", here, "up") &&
    ip("-n", name, "address", "add", `${net}.2/30`, "dev", there) &&
    ip("-n", name, "link", "set", there, "up");
  if (!isMade) return null;
  return { name, near: `${net}.1`, unplug: () => assert.ok(ip("-n", name, "link", "set", there, "down")) };
}

test("a host that vanishes without closing its connections is found by the lease of its worker, and no job is blamed at once", async (t) => {
  const far = otherHost(t);
  if (far === null) return t.skip("no network namespaces");
  const server = await ownRedis(t, { settings: { bind: `127.0.0.1 ${far.near}`, "protected-mode": "no" } });
  const place = new RedisPlace(t, `${server.url()}?store=shop`);
  const engine = await place.engine();
  const url = `redis://${far.near}:${server.port}?store=shop`;
  const worker = place.child({ network: far.name, url, heartbeat: SHORT });
  const { worker: id } = (await worker.untilFact("working")) as unknown as { worker: string };
  const { id: job } = await engine.enqueue(slow, { ms: 600_000 });
  await worker.untilFact("started", { id: job });
  const other = place.child({ heartbeat: SHORT });
  await other.untilFact("working");

  far.unplug();
  worker.kill("SIGKILL");
  await worker.exited;
  await other.untilFact("started", { id: job, attempt: 2 });
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  const [, subscribers] = (await wire.call(["PUBSUB", "NUMSUB", `o:{shop}:w:${id}`], 5_000)) as [string, number];
  assert.equal(subscribers, 2, "to the server both connections still stand");
  const [incident] = await engine.incidents();
  assert.equal(incident!.how, "silent");
  assert.equal((await engine.get(job))!.counters.crashes, 0);
  await engine.cancel(job);
});
