// Redis as the conformance suite wants it: connections to one fresh name, a clock that the suite steers in place of the server's, and the ways to
// damage what is kept and to let it come back from a backup.
import assert from "node:assert/strict";
import type { TestContext } from "node:test";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { JobInfo } from "../../src/job/job.ts";
import { hasNotBegun } from "../../src/job/transitions.ts";
import type { ListPage, Store } from "../../src/stores/port.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { Connection, tagOf } from "../../src/stores/redis/connection.ts";
import { redisStore } from "../../src/stores/redis/store.ts";
import type { ConformanceStores, Damage, Restore } from "../../src/testing/conformance/suite.ts";
import { contents, freshName, type FreshName } from "../support/redis.ts";

const START = Date.UTC(2026, 0, 1);
const HOUR_MS = 3_600_000;
/** All scripts take their time from one function. */
const STEERED = "local function NOW() return tonumber(redis.call('GET', KEYS[1] .. 'now')) end";

export async function redisStores(t: TestContext): Promise<ConformanceStores> {
  const fresh = await freshName(t);
  const tag = tagOf(fresh.name);
  let now = START;
  await fresh.call("SET", `${tag}now`, String(now));
  return {
    open: async () => storeOf(steered(fresh)),
    clock: {
      now: () => now,
      async advance(ms) {
        now += ms;
        await fresh.call("SET", `${tag}now`, String(now));
      },
    },
    damage: damageIn(fresh, tag),
    restore: restoreIn(fresh, tag),
    cleanup: () => assertIndexesAgree(fresh),
  };
}

function steered({ url, name }: FreshName): Connection {
  return new Connection({
    address: redisAddress(`${url}?store=${name}`),
    random: systemRandom,
    clock: systemClock,
    luaClock: STEERED,
  });
}

function storeOf(connection: Connection): Store {
  return redisStore({ connection, clock: systemClock, wakeups: null });
}

/** Counts come from the sizes of indexes, the list from the records: every index has exactly the jobs whose records say so. */
async function assertIndexesAgree(fresh: FreshName): Promise<void> {
  const connection = steered(fresh);
  const store = storeOf(connection);
  try {
    await assertRepairChangesNothing(connection, store);
    const jobs: JobInfo[] = [];
    for (let after: string | null = null; ;) {
      const page: ListPage = await store.inspect.list({}, 1_000, after);
      jobs.push(...page.jobs);
      if (page.next === null) break;
      after = page.next;
    }
    await assertChildrenAgree(connection, jobs);
    for (const { kind, ready, delayed, held, ...counted } of await store.inspect.counts()) {
      const inState = (state: JobInfo["state"]): number =>
        jobs.filter((job) => job.kind === kind && job.state === state).length;
      assert.equal(ready + delayed + held, inState("queued"), `queued jobs of ${kind}`);
      for (const state of ["running", "succeeded", "dead", "cancelled", "quarantined"] as const)
        assert.equal(counted[state], inState(state), `${state} jobs of ${kind}`);
    }
  } finally {
    await store.close();
  }
}

/** Every index is what a repair would make of the records: it finds nothing, and building all of them again gives the same. */
async function assertRepairChangesNothing(connection: Connection, store: Store): Promise<void> {
  const wrong = (await store.upkeep.integrity()).filter((finding) => !finding.includes("checksum"));
  assert.deepEqual(wrong, []);
  const before = await contents(connection);
  await store.upkeep.repair();
  assert.deepEqual(await contents(connection), before);
}

/** Of parents that are kept: the index of their children that have not begun has exactly those. */
async function assertChildrenAgree(connection: Connection, jobs: readonly JobInfo[]): Promise<void> {
  const prefix = `${connection.tag}ch:`;
  let indexed = 0;
  for (const key of (await connection.command("KEYS", `${prefix}*`)) as string[]) {
    const parent = Number(key.slice(prefix.length));
    const isKept = await connection.command(
      "HEXISTS",
      `${connection.tag}j:${Math.floor(parent / 64)}`,
      String(parent % 64),
    );
    if (isKept === 1) indexed += Number(await connection.command("ZCARD", key));
  }
  const notBegun = jobs.filter(({ parent, state, attempt }) => parent !== null && hasNotBegun(state, attempt));
  assert.equal(indexed, notBegun.length, "children that have not begun");
}

/** By a connection of its own that knows nothing of checksums. */
function damageIn({ call }: FreshName, tag: string): Damage {
  return async (id, what) => {
    const row = Number(await call("HGET", `${tag}x:${id.slice(0, 7)}`, id));
    const [page, slot] = [Math.floor(row / 64), row % 64];
    const key = what === "step" ? `${tag}s:${row}` : `${tag}${what === "input" ? "i" : "o"}:${page}`;
    const fields = what === "step" ? ((await call("HKEYS", key)) as string[]) : [String(slot)];
    assert.ok(fields.length > 0, `job ${id} has one ${what}`);
    const [read, write] = what === "input" ? (["LINDEX", "LSET"] as const) : (["HGET", "HSET"] as const);
    for (const field of fields) {
      const stored = String(await call(read, key, field));
      const at = stored.indexOf("+") + 1;
      const text = stored.slice(at);
      await call(write, key, field, stored.slice(0, at) + text.replaceAll(text[0]!, "?"));
    }
  };
}

function restoreIn({ call }: FreshName, tag: string): Restore {
  return {
    async renameWorker(id, to) {
      const n = String(await call("HGET", `${tag}ws`, id));
      await call("HDEL", `${tag}ws`, id);
      await call("HSET", `${tag}ws`, to, n);
      await call("HSET", `${tag}wi`, n, to);
      await call("HSET", `${tag}w:${n}`, "id", to);
      await call("ZREM", `${tag}fleet`, id);
      await call("ZADD", `${tag}fleet`, "0", to);
    },
    /** Another process of the server has loaded an hour-old copy: it has none of the scripts, and its run was never begun there. */
    async comeBack() {
      const at = Number(await call("HGET", `${tag}meta`, "at"));
      await call("HSET", `${tag}meta`, "run", "of-the-backup", "server", "", "at", String(at - HOUR_MS));
    },
  };
}
