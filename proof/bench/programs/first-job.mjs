// A fresh worker as users run it: built code, plain JavaScript, a compile cache as under `outlive work`. It prints the CPU that its process had
// used, with all threads and Node's own start, when the handler of the first job was called. Before it ends it leaves a job for the next one.
import { enableCompileCache } from "node:module";
import { pathToFileURL } from "node:url";

const [, , code = "", url = "", cache, what] = process.argv;
enableCompileCache(cache);
const node = cpuMs();
const { job, open } = await import(pathToFileURL(`${code}/index.js`).href);
const loaded = cpuMs();
const noop = job("noop");
const first = Promise.withResolvers();
noop.handle(() => first.resolve(cpuMs()));
const engine = await open(url, { jobs: [noop], logger: false });
const opened = cpuMs();
if (what === "work") {
  const started = engine.start();
  const ours = await first.promise;
  await (await started).stop();
  console.log(JSON.stringify({ node, loaded, opened, ours }));
}
await engine.enqueue(noop, null);
await engine.close();

function cpuMs() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1_000;
}
