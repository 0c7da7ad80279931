import { PageHead } from "../components/state";

export default function Page() {
  return <PageHead title="Build" words="This page is on its way." />;
}
