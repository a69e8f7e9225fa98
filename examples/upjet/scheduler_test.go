package upjet

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crossplane/upjet/pkg/terraform"
	"k8s.io/utils/exec"
)

// running is a daemon, the provider that its settings list, and a root module for it.
type running struct {
	Socket, Source, Version string
	Configuration           map[string]any
	Root                    map[string]any
}

func scheduler(t *testing.T) (*Scheduler, terraform.ProviderHandle, running) {
	r := running{}
	if text := os.Getenv("SLIPWAY_UPJET_EXAMPLE"); text == "" {
		t.Skip("NO DAEMON: `make terraform-daemon` runs these tests with one")
	} else if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	handle, err := terraform.ProviderConfiguration(r.Configuration).ToProviderHandle()
	if err != nil {
		t.Fatal(err)
	}
	s := &Scheduler{Socket: r.Socket, Source: r.Source, Version: r.Version, Owner: t.Name(), Configuration: r.Configuration, WaitSeconds: 30}
	return s, handle, r
}

func start(t *testing.T, s *Scheduler, handle terraform.ProviderHandle) (terraform.InUse, string) {
	inUse, reattach, err := s.Start(handle)
	if err != nil {
		t.Fatal(err)
	}
	return inUse, reattach
}

// address is that of the plugin in reattach JSON.
func address(t *testing.T, reattach string, source string) string {
	providers := map[string]struct{ Addr struct{ String string } }{}
	if err := json.Unmarshal([]byte(reattach), &providers); err != nil {
		t.Fatal(err)
	}
	return providers[source].Addr.String
}

func listens(address string) bool {
	conn, err := net.Dial("unix", address)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

func TestWorkspaceOfUpjetAppliesAndDestroys(t *testing.T) {
	s, handle, r := scheduler(t)
	folder := t.TempDir()
	root, _ := json.Marshal(r.Root)
	if err := os.WriteFile(filepath.Join(folder, "main.tf.json"), root, 0o600); err != nil {
		t.Fatal(err)
	}
	workspace := terraform.NewWorkspace(folder, terraform.WithExecutor(exec.New()), terraform.WithFilterFn(strings.Clone))
	inUse, reattach := start(t, s, handle)
	workspace.UseProvider(inUse, reattach)
	applied, err := workspace.Apply(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(applied.State.Resources) != 1 {
		t.Fatalf("%d resources in the state, not 1", len(applied.State.Resources))
	}
	if err := workspace.Destroy(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(handle); err != nil {
		t.Fatal(err)
	}
}

func TestReconcilesShareOneProcessWhichOutlivesStopWhileInUse(t *testing.T) {
	s, handle, r := scheduler(t)
	first, one := start(t, s, handle)
	_, two := start(t, s, handle)
	if one == "" || one != two {
		t.Fatalf("two processes of one configuration: %s, %s", one, two)
	}
	first.Increment()
	for range 2 {
		if err := s.Stop(handle); err != nil {
			t.Fatal(err)
		}
	}
	if !listens(address(t, one, r.Source)) {
		t.Fatal("the process is stopped while a CLI uses it")
	}
	first.Decrement()
	if len(s.leases) != 0 {
		t.Fatalf("%d leases left", len(s.leases))
	}
}

func TestErrorsOfTheDaemonAreReturned(t *testing.T) {
	s, handle, _ := scheduler(t)
	s.Version = "0.0.0"
	if _, _, err := s.Start(handle); err == nil || !strings.Contains(err.Error(), "not in the daemon's settings") {
		t.Fatalf("unexpected: %v", err)
	}
	s.Socket += ".none"
	if _, _, err := s.Start(handle); err == nil || !strings.Contains(err.Error(), "is it running?") {
		t.Fatalf("unexpected: %v", err)
	}
}
