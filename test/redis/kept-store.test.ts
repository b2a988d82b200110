// Opens a kept store of an older layout (test/fixtures): everything that was in it is there, what a dead worker held is recovered, and all that can run runs.
import assert from "node:assert/strict";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { open } from "../../src/index.ts";
import { migrationsOf } from "../../src/stores/registry.ts";
import { connect, type Wire } from "../../src/stores/redis/driver.ts";
import { LAYOUT_FROM_2, runMark } from "../../src/stores/redis/scripts.ts";
import { assertKept, assertRuns, copyKept, KEPT_OPTIONS } from "../support/kept-stores.ts";
import { ownRedis } from "../support/redis.ts";

const META = "o:{outlive}:meta";

async function keptServer(t: TestContext): Promise<{ readonly url: string; readonly wire: Wire }> {
  const server = await ownRedis(t);
  await server.kill();
  copyKept("redis-2.rdb.gz", join(server.folder, "dump.rdb"));
  await server.start();
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  return { url: server.url(), wire };
}

for (const server of [
  "that was started with it",
  "on which older programs work",
  "on which a process was killed while it gave it the next layout",
])
  test(`a store of layout 2, on a server ${server}: it gets layout 3 with a run of its own, and all that can run runs`, async (t) => {
    const { url, wire } = await keptServer(t);
    const [schema, run] = (await wire.call(["HMGET", META, "schema", "run"], 5_000)) as [string, string];
    assert.equal(schema, "2");
    // What older programs go by: their scripts are carried out as long as the run is theirs.
    if (server.includes("older programs")) await wire.call(["SCRIPT", "LOAD", runMark(run).text], 5_000);
    if (server.includes("killed")) {
      await wire.call(["EVAL", LAYOUT_FROM_2, "1", "o:{outlive}:", "1"], 5_000);
      assert.equal(await wire.call(["HGET", META, "repair"], 5_000), "layout", "older programs are refused meanwhile");
    }
    const engine = await open(url, KEPT_OPTIONS);
    t.after(() => engine.close({ grace: "0ms" }));
    const after = (await wire.call(["HMGET", META, "schema", "run"], 5_000)) as [string, string];
    assert.equal(after[0], "3");
    assert.notEqual(after[1], run, "a script of an older program is refused");
    assert.deepEqual((await engine.operator.integrity()).findings, []);
    const counts = await engine.counts();
    assert.deepEqual(
      counts.filter(({ paused }) => paused).map(({ kind }) => kind),
      ["call"],
    );
    await assertKept(engine);
    await assertRuns(engine);
    assert.deepEqual((await engine.operator.integrity()).findings, []);
  });

test("`migrate` lists layout 3 as missing in a store of layout 2, and `migrate up` gives it to it", async (t) => {
  const { url } = await keptServer(t);
  const migrations = await migrationsOf(url);
  const applied = async (): Promise<readonly boolean[]> => (await migrations.list()).map((one) => one.applied);
  assert.deepEqual(await applied(), [false]);
  assert.deepEqual(await migrations.up(), [1]);
  assert.deepEqual(await applied(), [true]);
  assert.deepEqual(await migrations.up(), []);
});

for (const [schema, says] of [
  ["1", /layout 1, which was never released/],
  ["4", /layout 4, and this program knows 3/],
] as const)
  test(`a store of layout ${schema} is refused with a sentence, and nothing is written`, async (t) => {
    const { url, wire } = await keptServer(t);
    await wire.call(["HSET", META, "schema", schema], 5_000);
    const before = await wire.call(["HGETALL", META], 5_000);
    await assert.rejects(open(url, KEPT_OPTIONS), { message: says });
    assert.deepEqual(await wire.call(["HGETALL", META], 5_000), before);
  });
