// `npm run requirements`: every requirement of the first queue (seed 004), of the batch arrangement (seed 000) and of BigResultHandler (seed 002), and the tests that
// hold it. `--json` for programs. Exits 1 if one has none.
import { BATCH_IDS, COLLECTION_IDS, IDS, requirements } from "../test/support/requirements.ts";

const holdings = requirements([...IDS, ...BATCH_IDS, ...COLLECTION_IDS]);
const missing = holdings.filter(({ tests }) => tests.length === 0);

if (process.argv.includes("--json")) {
  console.log(JSON.stringify({ requirements: holdings, missing: missing.map(({ id }) => id) }));
} else {
  for (const { id, tests } of holdings) {
    if (tests.length === 0) console.log(`${id.padEnd(8)} MISSING`);
    tests.forEach(({ file, title }, i) => console.log(`${(i === 0 ? id : "").padEnd(8)} ${title}  (${file})`));
  }
  const covered = holdings.length - missing.length;
  console.log(`\n${covered} of ${holdings.length} requirements are held by tests.`);
}
process.exitCode = missing.length > 0 ? 1 : 0;
