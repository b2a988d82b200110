// --http: probes and metrics of all worker processes, and nothing else.
import assert from "node:assert/strict";
import { test } from "node:test";
import { slow } from "../support/jobs.ts";
import { untilTrue } from "../support/processes.ts";
import { Fleet, type Supervised } from "./fleet.ts";

async function address(supervised: Supervised): Promise<string> {
  const [line] = await supervised.said(/serves \/live, \/ready and \/metrics$/);
  return `http://${String(line!["http"])}`;
}

/** The value of one sample, or the sum over all samples of that name. */
async function sample(url: string, pattern: RegExp): Promise<number> {
  const text = await (await fetch(`${url}/metrics`)).text();
  return text
    .split("\n")
    .filter((line) => pattern.test(line))
    .reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

test("/live, /ready and /metrics are served on the loopback address, only to be read, and nothing else is", async (t) => {
  const fleet = new Fleet(t);
  const supervised = fleet.work({ args: ["--http", "0"] });
  const url = await address(supervised);
  assert.match(url, /^http:\/\/127\.0\.0\.1:\d+$/);
  const status = async (path: string, method = "GET"): Promise<number> => (await fetch(url + path, { method })).status;
  assert.equal(await status("/live"), 200);
  await supervised.working();
  assert.equal(await status("/ready"), 200);
  assert.equal(await status("/metrics?x=1"), 200);
  for (const path of ["/", "/metricsx", "/live/", "/toString", "/jobs"]) assert.equal(await status(path), 404, path);
  for (const path of ["/live", "/ready"]) {
    assert.equal(await status(path, "HEAD"), 200, path);
    const refused = await fetch(url + path, { method: "POST" });
    assert.deepEqual([refused.status, refused.headers.get("allow")], [405, "GET, HEAD"]);
  }
  for (const method of ["POST", "PUT", "DELETE", "HEAD"]) {
    const response = await fetch(`${url}/metrics`, { method });
    assert.equal(response.status, 405, method);
    assert.equal(response.headers.get("allow"), "GET");
  }
});

test("/ready says why not while nothing works and while it drains", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  await engine.enqueue(slow, { ms: 60_000 });
  const supervised = fleet.work({ args: ["--http", "0", "--grace", "20s"] });
  const url = await address(supervised);
  const ready = async (): Promise<[number, string]> => {
    const response = await fetch(`${url}/ready`);
    return [response.status, await response.text()];
  };
  const first = await ready();
  if (first[0] !== 200) assert.deepEqual(first, [503, "not ready: no worker process is working\n"]);
  await supervised.working();
  assert.deepEqual(await ready(), [200, "ready\n"]);
  supervised.kill("SIGTERM");
  await supervised.said(/^SIGTERM: /);
  assert.deepEqual(await ready(), [503, "not ready: draining\n"]);
});

test("the metrics of two worker processes are summed, also after one of them is gone", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const supervised = fleet.work({ args: ["--http", "0", "--processes", "2", "--concurrency", "1"] });
  const url = await address(supervised);
  const pids = await supervised.working(2);
  // One at a time in each: ten that take a moment are shared, unless one stands still for that long.
  const succeeded = /^outlive_attempts_total\{.*outcome="succeeded".*\} /;
  let count = 0;
  for (const owners = new Set(); owners.size < 2;) {
    count += 10;
    await engine.enqueueMany(
      slow,
      Array.from({ length: 10 }, () => ({ ms: 100 })),
    );
    await untilTrue(
      () => sample(url, succeeded),
      (n) => n === count,
      "the attempts are counted",
    );
    for (const { worker } of (await engine.list({ kind: "slow" })).jobs) owners.add(worker);
  }
  assert.equal(await sample(url, /^outlive_claims_total\{kind="slow"\} /), count);
  assert.equal(await sample(url, /^outlive_attempt_duration_seconds_count\{kind="slow"\} /), count);
  // What the store reports is reported once, not once per process.
  assert.equal(await sample(url, /^outlive_jobs\{.*kind="slow".*state="succeeded"/), count);
  assert.equal(await sample(url, /^outlive_workers\{state="live"\} /), 2);

  await engine.enqueue(slow, { ms: 60_000 });
  await untilTrue(
    () => sample(url, /^outlive_claims_total\{kind="slow"\} /),
    (n) => n === count + 1,
    "one more runs",
  );
  // The second stands still first: it must not find the death of the other, and die with what it counted of it.
  process.kill(pids[1]!, "SIGSTOP");
  for (const pid of pids) process.kill(pid, "SIGKILL");
  await supervised.working(4);
  await untilTrue(
    () => sample(url, /^outlive_claims_total\{kind="slow"\} /),
    (n) => n === count + 2,
    "what the dead had counted stays, and that one runs again",
  );
  assert.equal(await sample(url, succeeded), count);
  assert.equal(await sample(url, /^outlive_crashes_total\{kind="slow"\} /), 1);
  assert.equal(await sample(url, /^outlive_incidents_total\{how="gone"\} /), 2);
  assert.equal(await sample(url, /^outlive_time_to_resume_seconds_count /), 1);
  // The process that found a death may never have checked that worker before: then there is no time to report.
  const reports = await Promise.all((await engine.incidents()).map(({ id }) => engine.report(id)));
  const seenAlive = reports.filter((report) => report!.deadWorkers[0]!.lastSeenAliveAt !== null);
  assert.equal(await sample(url, /^outlive_time_to_detect_seconds_count /), seenAlive.length);
});
