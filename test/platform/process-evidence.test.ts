// Real processes, alive, dead and in between, and what the kernel lets another process know of them.
import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { parseProcessStat, processIdentity, processState, readProcessStat } from "../../src/platform/identity.ts";
import type { ProcessKey } from "../../src/stores/liveness.ts";

const self = processIdentity();
const unsharing = spawnSync("unshare", ["-m", "true"]).status === 0;
const inNamespaces = unsharing ? {} : { skip: "needs root on Linux, to make namespaces" };
const nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
const asAnotherUser =
  unsharing && spawnSync(nobody[0]!, [...nobody.slice(1), "test", "-r", fileURLToPath(import.meta.url)]).status === 0
    ? {}
    : { skip: "needs root, and a folder that other users may read" };
const onLinux = process.platform === "linux" ? {} : { skip: "needs /proc" };

function sleeper(t: TestContext): ChildProcess & { readonly pid: number } {
  const child = spawn("sleep", ["1000"], { stdio: "ignore" });
  t.after(() => child.kill("SIGKILL"));
  return child as ChildProcess & { readonly pid: number };
}

function keyOf(pid: number): ProcessKey {
  return { ...self, pid, startTicks: readProcessStat(pid)!.startTicks };
}

/** What a process sees that runs behind `before`, which may put it into other namespaces. */
function seenBehind(
  before: readonly string[],
  keys: readonly Partial<ProcessKey>[],
): { self: ProcessKey; states: string[] } {
  const program = fileURLToPath(new URL("./observer.ts", import.meta.url));
  const [file, ...args] = [...before, process.execPath, "--disable-warning=ExperimentalWarning", program];
  return JSON.parse(execFileSync(file, [...args, JSON.stringify(keys)], { encoding: "utf8" }));
}

test("this process knows its boot, its PID namespace and when it started", onLinux, () => {
  assert.match(self.bootId, /^[0-9a-f-]{36}$/);
  assert.match(self.namespace ?? "", /^pid:\[\d+\]$/);
  assert.equal(self.startTicks, readProcessStat(process.pid)?.startTicks);
  assert.equal(seenBehind([], []).self.bootId, self.bootId);
});

test("a running process is alive, and gone once it was killed", onLinux, async (t) => {
  const child = sleeper(t);
  const key = keyOf(child.pid);
  assert.equal(processState(self, key), "alive");
  child.kill("SIGKILL");
  await once(child, "exit");
  assert.equal(processState(self, key), "gone");
});

test("a stopped process is alive", onLinux, async (t) => {
  const child = sleeper(t);
  const key = keyOf(child.pid);
  child.kill("SIGSTOP");
  while (readProcessStat(child.pid)?.state !== "T") await new Promise(setImmediate);
  assert.equal(processState(self, key), "alive");
});

test("a zombie is gone, although its pid still exists", onLinux, async (t) => {
  const parent = spawn("sh", ["-c", "sleep 0 & echo $!; exec sleep 1000"], { stdio: ["ignore", "pipe", "ignore"] });
  t.after(() => parent.kill("SIGKILL"));
  const [line] = (await once(createInterface(parent.stdout), "line")) as [string];
  const pid = Number(line);
  while (readProcessStat(pid)?.state !== "Z") await new Promise(setImmediate);
  process.kill(pid, 0);
  assert.equal(processState(self, keyOf(pid)), "gone");
  assert.equal(processState(self, { ...self, pid, startTicks: null }), "gone");
});

test("a pid that started at another time is another process, also if it is our own", onLinux, (t) => {
  const { pid } = sleeper(t);
  assert.equal(processState(self, { ...self, pid, startTicks: "1" }), "gone");
  assert.equal(processState(self, { ...self, startTicks: "1" }), "gone");
  assert.equal(processState(self, self), "alive");
});

test(
  "nothing is known of a process of another boot or PID namespace, or of one that did not say",
  onLinux,
  async (t) => {
    const child = sleeper(t);
    const key = keyOf(child.pid);
    child.kill("SIGKILL");
    await once(child, "exit");
    assert.equal(processState(self, { ...key, bootId: "another" }), "unknown");
    assert.equal(processState(self, { ...key, namespace: "pid:[1]" }), "unknown");
    assert.equal(processState(self, { ...key, namespace: null }), "unknown");
    assert.equal(processState({ ...self, namespace: null }, { ...key, namespace: null }), "unknown");
    assert.equal(processState(self, key), "gone");
  },
);

test("a pid that can't be one proves nothing", onLinux, () => {
  for (const pid of [0, -1, 1.5, Number.NaN]) assert.equal(processState(self, { ...self, pid }), "unknown");
});

test("without start ticks only a pid that does not exist proves something", onLinux, async (t) => {
  const child = sleeper(t);
  const key = { ...keyOf(child.pid), startTicks: null };
  const blind = { ...self, startTicks: null };
  assert.equal(processState(self, key), "unknown");
  assert.equal(processState(blind, keyOf(child.pid)), "unknown");
  assert.equal(processState(blind, blind), "unknown");
  child.kill("SIGKILL");
  await once(child, "exit");
  assert.equal(processState(self, key), "gone");
  assert.equal(processState(blind, key), "gone");
});

test(
  "another user's process behind hidepid is unknown while it lives and gone after its death",
  inNamespaces,
  async (t) => {
    const child = sleeper(t);
    const key = keyOf(child.pid);
    const hidden = [
      "unshare",
      "-m",
      "sh",
      "-c",
      'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"',
      "sh",
    ];
    assert.deepEqual(seenBehind(hidden, [{ pid: key.pid, startTicks: key.startTicks! }]).states, ["unknown"]);
    child.kill("SIGKILL");
    await once(child, "exit");
    assert.deepEqual(seenBehind(hidden, [{ pid: key.pid, startTicks: key.startTicks! }]).states, ["gone"]);
  },
);

test("another user's process is alive where /proc shows it", asAnotherUser, (t) => {
  const { pid, startTicks } = keyOf(sleeper(t).pid);
  assert.deepEqual(seenBehind(nobody, [{ pid, startTicks }]).states, ["alive"]);
});

test("in another PID namespace nothing is known of ours, and the namespace says so", inNamespaces, (t) => {
  const key = keyOf(sleeper(t).pid);
  const seen = seenBehind(["unshare", "-pf", "--mount-proc"], [key]);
  assert.notEqual(seen.self.namespace, self.namespace);
  assert.equal(seen.self.bootId, self.bootId);
  assert.deepEqual(seen.states, ["unknown"]);
});

test("a /proc of another PID namespace is not asked about pids of this one", inNamespaces, () => {
  // Pid 1 exists in both. What /proc shows as pid 1 is not the one of the new namespace.
  const seen = seenBehind(
    ["unshare", "-pf", "sh", "-c", '"$@"; exit $?', "sh"],
    [{ pid: 1, startTicks: "1" }, { pid: 4_000_000 }],
  );
  assert.equal(seen.self.startTicks, null);
  assert.deepEqual(seen.states, ["unknown", "gone"]);
});

test("start ticks of another time namespace are not compared", inNamespaces, (t) => {
  const key = keyOf(sleeper(t).pid);
  const seen = seenBehind(["unshare", "-T", "-f", "--boottime", "100000"], [key]);
  assert.equal(seen.self.startTicks, null);
  assert.deepEqual(seen.states, ["unknown"]);
});

test("a pid that was given to another process proves the death of the first", inNamespaces, () => {
  const program = fileURLToPath(new URL("./reused-pid.ts", import.meta.url));
  const args = ["-pf", "--mount-proc", process.execPath, "--disable-warning=ExperimentalWarning", program];
  assert.deepEqual(JSON.parse(execFileSync("unshare", args, { encoding: "utf8" })), {
    gone: "gone",
    reused: "gone",
    second: "alive",
  });
});

test("a process name with blanks and brackets does not shift the fields", () => {
  const fields = `S ${Array.from({ length: 49 }, (_, n) => n + 4).join(" ")}`;
  assert.deepEqual(parseProcessStat(`42 (a) Z 1 (b) ${fields}`), { pid: 42, state: "S", startTicks: "22" });
  assert.equal(parseProcessStat("42 (short) S 1 2"), null);
  assert.equal(parseProcessStat(""), null);
});
