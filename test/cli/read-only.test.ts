// `--read-only`: commands that look work on a damaged store, those that change are refused.
import assert from "node:assert/strict";
import { test } from "node:test";
import { cliOn } from "../support/cli.ts";
import { zeroRoot } from "../support/damage.ts";
import { slow } from "../support/jobs.ts";
import { Place } from "../support/processes.ts";

test("NFR-009 with --read-only a damaged store can be looked at, as far as it can be read, and nothing is changed", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 1 });
  await engine.close();
  const { run } = cliOn(t, place.url);
  const sound = await run("job", id, "--read-only");
  assert.equal(sound.code, 0, sound.stderr);
  const refused = await run("cancel", id, "--read-only");
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /opened with readOnly, so that nothing can cancel a job\. Nothing was written/);
  zeroRoot(place.path, "outlive_jobs");
  const workers = await run("workers", "--read-only");
  assert.equal(workers.code, 0, workers.stderr);
  const jobs = await run("jobs", "--read-only");
  assert.equal(jobs.code, 1);
  assert.match(jobs.stderr, /malformed.*other reads go on.*outlive check --repair/);
});
