// A process that submits and kills itself before a certain script. Arguments: the address, which submission, before how many scripts it dies.
import { struckStore, SUBMISSIONS } from "./submission.ts";

const [url, which, dies] = process.argv.slice(2) as [string, keyof typeof SUBMISSIONS, string];
const store = struckStore(url, async (call) => {
  if (call === Number(dies)) process.kill(process.pid, "SIGKILL");
});
await SUBMISSIONS[which](store);
await store.close();
process.send?.({ fact: "submitted" });
process.disconnect();
