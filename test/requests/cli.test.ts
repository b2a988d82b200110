// Requests as an operator sees them: `outlive requests`, `requests unknown`, `retry`, and their metrics.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Registry } from "prom-client";
import { z } from "zod";
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
  assert.match(text, /hook hook\.example: paused, disabled: the endpoint returned 410/);
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

test("people are shown URLs without the values of their query, and headers by allow-list", async (t) => {
  const place = new Place(t);
  const { network } = answers({
    "GET https://fails.example/*": 404,
    "GET https://works.example/*": { text: "ok", headers: { "content-type": "text/plain", "x-session": "s3cr3t" } },
  });
  const get = request("get", {
    input: z.string(),
    method: "GET",
    send: (host) => ({ url: `https://${host}.example/a?token=t0p` }),
  });
  const headers: unknown[] = [];
  get.onResponse((answer) => void headers.push(answer.headers["x-session"]));
  const lines: string[] = [];
  const write = (line: string): void => void lines.push(line);
  const logger = { debug: write, info: write, warn: write, error: write };
  const engine = await place.engine({ jobs: [get], network, logger });
  const ended: string[] = [];
  engine.on("request.ended", (event) => void ended.push(JSON.stringify(event)));
  const { run, json } = cliOn(t, place.url);
  const failing = await engine.enqueue(get, "fails");
  const working = await engine.enqueue(get, "works");
  const worker = await engine.start();
  await assert.rejects(engine.result(failing.id), /GET https:\/\/fails\.example\/a\?token=\.\.\.: answered 404/);
  await engine.result(working.id);
  const callback = `${working.id}.response.1`;
  await engine.result(callback);
  await worker.stop();
  assert.deepEqual(headers, ["s3cr3t"], "the callback has all headers");
  assert.match(ended.join("\n"), /GET https:\/\/works\.example\/a\?token=\.\.\./);
  const asJson = JSON.stringify((await json("job", callback)).value);
  const views = [(await run("job", failing.id)).stdout, (await run("job", callback)).stdout, asJson];
  assert.doesNotMatch([...ended, ...lines, ...views].join("\n"), /t0p|s3cr3t/);
  assert.match(asJson, /"content-type":"text\/plain".*"x-session":"\.\.\."/);
  assert.match((await run("job", callback, "--full")).stdout, /s3cr3t/);
});
