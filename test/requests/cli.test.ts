// Requests as an operator sees them: `outlive requests`, `requests unknown`, `retry`, and their metrics.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Registry } from "prom-client";
import { attachMetrics } from "../../src/metrics.ts";
import { request } from "../../src/requests.ts";
import { answers } from "../../src/testing/index.ts";
import { cliOn } from "../support/cli.ts";
import { Place } from "../support/processes.ts";

test("requests by kind and key, disabled endpoints, unknown outcomes, and a retry that sends again", async (t) => {
  const place = new Place(t);
  const { network, sent } = answers({
    "POST https://pay.example/*": [{ error: "cut" }, { text: "paid" }],
    "PUT https://hook.example/*": 410,
  });
  const pay = request("pay", {
    method: "POST",
    ifUnknown: "fail",
    send: () => ({ url: "https://pay.example/?token=t0p" }),
  });
  const hook = request("hook", { method: "PUT", disable: {}, send: () => ({ url: "https://hook.example/" }) });
  const engine = await place.engine({ jobs: [pay, hook], network });
  const registry = new Registry();
  const metrics = attachMetrics(engine, { registry });
  t.after(() => metrics());
  const { run, json } = cliOn(t, place.url);
  const { id } = await engine.enqueue(pay, 1);
  const gone = await engine.enqueue(hook, 1);
  const worker = await engine.start();
  await assert.rejects(engine.result(id));
  await assert.rejects(engine.result(gone.id));
  await engine.enqueue(hook, 2);
  const text = (await run("requests")).stdout;
  assert.match(text, /^KIND +IN FLIGHT +WAITING +HELD +ASKED +DEAD/);
  assert.match(text, /hook hook\.example: paused, disabled: the endpoint answered 410/);
  const { kinds } = (await json("requests")).value as { kinds: { kind: string; held: number; dead: number }[] };
  assert.deepEqual(
    kinds.map(({ kind, held, dead }) => [kind, held, dead]).toSorted((a, b) => String(a).localeCompare(String(b))),
    [
      ["hook", 1, 1],
      ["pay", 0, 1],
    ],
  );
  const { requests } = (await json("requests", "unknown")).value as { requests: { jobId: string; is: string }[] };
  assert.deepEqual(
    requests.map(({ jobId, is }) => [jobId, is]),
    [[id, "failed"]],
  );
  assert.match((await run("requests", "unknown")).stdout, new RegExp(`${id} +pay +failed`));
  await run("retry", id);
  await engine.result(id);
  await worker.stop();
  assert.equal(sent.filter(({ method }) => method === "POST").length, 2);
  const shown = await registry.metrics();
  assert.match(shown, /outlive_requests_total\{kind="pay",host="pay\.example",class="network"\} 1/);
  assert.match(shown, /outlive_requests_total\{kind="pay",host="pay\.example",class="2xx"\} 1/);
  assert.doesNotMatch(shown + JSON.stringify(await engine.get(id)), /t0p/);
});
