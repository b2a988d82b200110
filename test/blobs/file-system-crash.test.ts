// SIGKILL as a real process enters each write, sync, rename, mkdir and unlink of its puts: a blob is whole or not there, what resolved
// is there, and the next put removes what the dead process left. The order that survives a power loss is read from the calls.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { ensureStrace } from "../../proof/torture/strace.ts";
import { type Call, parseTrace, textsOf } from "../../proof/torture/trace.ts";
import { openBlobs } from "../../src/blobs.ts";
import { processIdentity } from "../../src/platform/identity.ts";
import { contentOf, PUTS } from "../support/blob-puts.ts";

const PROGRAM = fileURLToPath(new URL("../support/blob-putter.ts", import.meta.url));
const CALLS = ["mkdir", "pwrite64", "fsync", "rename", "unlink"];

function place(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), "outlive-blobs-"));
  t.after(() => rmSync(folder, { recursive: true }));
  return folder;
}

/** One thread for all calls of files, because strace counts for each thread. */
function putter(folder: string, strace: readonly string[]): Promise<{ killed: boolean; said: string[] }> {
  const program = [process.execPath, "--disable-warning=ExperimentalWarning", PROGRAM, folder];
  const env = {
    ...process.env,
    UV_THREADPOOL_SIZE: "1",
    NODE_COMPILE_CACHE: join(tmpdir(), "outlive-blob-putter-code"),
  };
  const child = spawn("strace", ["-f", ...strace, ...program], { stdio: ["ignore", "pipe", "inherit"], env });
  let text = "";
  child.stdout.on("data", (data: Buffer) => (text += data.toString()));
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code, signal) => {
      const killed = signal === "SIGKILL" || code === 137;
      if (!killed && code !== 0) return reject(new Error(`ended with ${signal ?? code}`));
      resolve({ killed, said: text.split("\n").slice(0, -1) });
    });
  });
}

test("killed at every call of its puts: what resolved is there, the rest is whole or not there, and nothing is left", async (t) => {
  ensureStrace();
  const root = place(t);
  const trace = join(root, "trace");
  await putter(join(root, "recorded"), ["-e", `trace=${CALLS.join(",")}`, "-o", trace]);
  // Strace counts for each thread. Calls of the code cache are made by the main thread, too; those of the one thread of the pool are all of blobs.
  const text = readFileSync(trace, "latin1");
  const pool = /^(\d+) +fsync\(/m.exec(text)![1];
  const counts = new Map<string, number>();
  const points = [...text.matchAll(/^(\d+) +(\w+)\((.*)$/gm)].flatMap(([, thread, call, rest]) => {
    const nth = (counts.get(`${thread} ${call}`) ?? 0) + 1;
    counts.set(`${thread} ${call}`, nth);
    return thread === pool || rest!.includes(join(root, "recorded")) ? [[call!, nth] as const] : [];
  });
  assert.deepEqual([...new Set(points.map(([call]) => call))].toSorted(), CALLS.toSorted());
  let kills = 0;
  let leftovers = 0;
  const left = points.values();
  const lane = async (): Promise<void> => {
    for (const [call, nth] of left) {
      const folder = join(root, `${call}-${nth}`);
      const inject = ["-e", `trace=${call}`, "-e", `inject=${call}:signal=SIGKILL:when=${nth}`, "-o", "/dev/null"];
      const { killed, said } = await putter(folder, inject);
      const at = `killed at ${call} ${nth}`;
      if (killed) kills++;
      const blobs = openBlobs(folder);
      const found = await Array.fromAsync(blobs.list(), ({ key }) => key);
      assert.deepEqual(
        found.filter((key) => !PUTS.includes(key)),
        [],
        at,
      );
      for (const key of found)
        assert.ok(
          Buffer.concat(await Array.fromAsync(blobs.get(key))).equals(contentOf(key)),
          `${at}: ${key} is whole`,
        );
      const resolved = said.filter((line) => line.startsWith("put ")).map((line) => line.slice(4));
      // The last act deletes the first blob, and may have done so.
      const mayBeGone = resolved.length === PUTS.length ? PUTS[0] : undefined;
      for (const key of resolved) assert.ok(found.includes(key) || key === mayBeGone, `${at}: ${key} resolved`);
      const incoming = join(folder, ".incoming");
      leftovers += namesIn(incoming).length;
      await blobs.put("after", Buffer.from("x"));
      assert.deepEqual(namesIn(incoming), [], `${at}: leftovers are swept`);
    }
  };
  await Promise.all([lane(), lane()]);
  t.diagnostic(`${kills} kills at ${points.length} calls, ${leftovers} leftovers`);
  assert.ok(kills >= points.length - 1, `${kills} of ${points.length} were killed`);
  assert.ok(leftovers > 5, `${leftovers} leftovers were there to be swept`);
});

test("a blob is synced before it is renamed, its folder and new folders above it are synced after, and only then does the put resolve", async (t) => {
  ensureStrace();
  const root = place(t);
  const trace = join(root, "trace");
  const folder = join(root, "blobs");
  await putter(folder, ["-y", "-xx", "-s", "300", "-e", "trace=openat,mkdir,pwrite64,fsync,rename,write", "-o", trace]);
  // The contents of large writes are cut off, and not needed.
  const text = readFileSync(trace, "latin1").replaceAll(/(pwrite64\(\d+<[^>]*>), "[^"]*"\.{0,3}/g, "$1");
  const calls = parseTrace(text).filter(({ result }) => result !== -1);
  const paths = (call: Call): string[] => textsOf(call).map(String);
  const said = calls.filter((call) => call.name === "write" && /1<[^>]*>, "/.test(call.args) && isPut(call));
  const renames = calls.filter(({ name }) => name === "rename").filter((call) => paths(call)[1]!.startsWith(folder));
  assert.equal(renames.length, PUTS.length);
  assert.equal(said.length, PUTS.length);
  for (const [n, renamed] of renames.entries()) {
    const [from, to] = paths(renamed) as [string, string];
    assert.equal(to, join(folder, PUTS[n]!));
    const writes = calls.filter(({ name, file }) => name === "pwrite64" && file === from);
    assert.ok(writes.length > 0);
    // Or each write is a sync, too.
    const opened = calls.find(
      (call) => call.name === "openat" && call.args.includes("O_DSYNC") && paths(call)[0] === from,
    );
    assert.equal(opened !== undefined, to.endsWith("staged"));
    const synced =
      opened ??
      calls.find(({ name, file, began }) => name === "fsync" && file === from && began > writes.at(-1)!.ended);
    assert.ok(writes.at(-1)!.ended < renamed.began);
    assert.ok(synced !== undefined && synced.ended < renamed.began, `${to}: the file is synced before the rename`);
    const parent = to.slice(0, to.lastIndexOf("/"));
    const named = calls.find(({ name, file, began }) => name === "fsync" && file === parent && began > renamed.ended);
    assert.ok(
      named !== undefined && named.ended < said[n]!.began,
      `${to}: its folder is synced before the put resolves`,
    );
  }
  const made = calls.filter(({ name }) => name === "mkdir").map((call) => [call, paths(call)[0]!] as const);
  const below = made.filter(([, path]) => path.startsWith(join(folder, "kind")));
  assert.equal(below.length, 3, "kind, kind/one, kind/two");
  for (const [call, path] of below) {
    const parent = path.slice(0, path.lastIndexOf("/"));
    const synced = calls.find(({ name, file, began }) => name === "fsync" && file === parent && began > call.ended);
    const next = said.find(({ began }) => began > call.ended)!;
    assert.ok(synced !== undefined && synced.ended < next.began, `${path} is durable before a blob in it is`);
  }
});

function isPut(call: Call): boolean {
  return textsOf(call).some((written) => written.toString().startsWith("put "));
}

test("what a live process writes is never swept; what another boot or an unknown process left is, the latter after a day", async (t) => {
  const folder = place(t);
  const blobs = openBlobs(folder);
  const rest = Promise.withResolvers<void>();
  const started = Promise.withResolvers<void>();
  const putting = blobs.put(
    "slow",
    (async function* () {
      yield Buffer.alloc(600_000);
      started.resolve();
      await rest.promise;
    })(),
  );
  await started.promise;
  const incoming = join(folder, ".incoming");
  const [live] = namesIn(incoming);
  const { bootId, namespace, pid, startTicks } = processIdentity();
  const leave = (...of: unknown[]): string => {
    const name = `${Buffer.from(JSON.stringify(of)).toString("base64url")}.0011223344556677`;
    writeFileSync(join(incoming, name), "half");
    return name;
  };
  const elsewhere = leave(bootId, "pid:[1]", 1, "5");
  const elsewhereLongAgo = leave(bootId, "pid:[2]", 1, "5");
  utimesSync(join(incoming, elsewhereLongAgo), new Date(), new Date(Date.now() - 25 * 3_600_000));
  const otherBoot = leave("00000000-0000-4000-8000-000000000000", namespace, pid, startTicks);
  const reusedPid = leave(bootId, namespace, pid, "1");
  const foreign = "a-file-of-the-user";
  writeFileSync(join(incoming, foreign), "");
  // Another store, as another process would have it, sweeps at its first put.
  await openBlobs(folder).put("fast", Buffer.from("x"));
  assert.deepEqual(namesIn(incoming), [live!, elsewhere, foreign].toSorted());
  assert.ok(![elsewhereLongAgo, otherBoot, reusedPid].some((name) => namesIn(incoming).includes(name)));
  rest.resolve();
  assert.equal((await putting).size, 600_000);
});

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder).toSorted();
  } catch {
    return [];
  }
}
