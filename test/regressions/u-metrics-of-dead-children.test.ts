// Not confirmed by the research: the supervisor could keep the metrics of every worker process that ended, as long as nothing scraped
// them. It did: with --watch, for instance, one more at every change of a module.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Counter, Gauge, Registry } from "prom-client";
import type { Child } from "../../src/cli/supervisor/child.ts";
import { FleetMetrics } from "../../src/cli/supervisor/http.ts";
import { job } from "../../src/index.ts";
import { memory } from "../engine/engines.ts";

const DEATHS = 200;

test("U: metrics of ended worker processes do not pile up while nothing scrapes, and none is lost", async (t) => {
  setFlagsFromString("--expose-gc");
  const collectGarbage = runInNewContext("gc") as () => void;
  const fleet = new FleetMetrics(await memory(t, [job("mail")]), []);
  // Earlier commits called it `bury`.
  const addEnded = (child: Child): void =>
    (Reflect.get(fleet, "addEnded" in fleet ? "addEnded" : "bury") as (child: Child) => void).call(fleet, child);
  const snapshots: WeakRef<object>[] = [];
  for (let n = 0; n < DEATHS; n++) {
    const registry = new Registry();
    new Counter({ name: "jobs_total", help: "jobs", registers: [registry] }).inc(n);
    new Gauge({ name: "held", help: "held", registers: [registry] }).set(1);
    const latest = await registry.getMetricsAsJSON();
    snapshots.push(new WeakRef(latest));
    addEnded({ latest } as unknown as Child);
  }
  addEnded({ latest: null } as Child);
  const kept = (): number => snapshots.filter((snapshot) => snapshot.deref() !== undefined).length;
  // The latest one may still be in use.
  for (let turn = 0; turn < 100 && kept() > 1; turn++) {
    await setImmediate();
    collectGarbage();
  }
  assert.ok(kept() <= 1, `${kept()} of ${DEATHS} snapshots are kept`);
  const text = await fleet.text([]);
  assert.match(text, new RegExp(`^jobs_total ${(DEATHS * (DEATHS - 1)) / 2}$`, "m"));
  assert.doesNotMatch(text, /^held /m, "the dead hold nothing");
});
