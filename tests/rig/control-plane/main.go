// One program that is every part of the test cluster's control plane and of its
// node, picked by the name it is called by: the parts share most of their code, so one program
// builds in a fraction of the time and space of five.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	// Credential plugins of the API's clients, as in the released programs.
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	// Registrations that the released programs make by import: the JSON log
	// format, client metrics and the version metric.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs maps a name to what runs it and gives its exit status.
var programs = map[string]func() int{
	"etcd": func() int {
		// Ends the process itself on failure.
		etcdmain.Main(os.Args)
		return 0
	},
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(controllermanager.NewControllerManagerCommand),
	"kube-scheduler": command(func() *cobra.Command {
		return scheduler.NewSchedulerCommand()
	}),
	"kubelet":    command(kubeletCommand),
	"kube-proxy": command(proxy.NewProxyCommand),
	"kubectl": func() int {
		// kubectl prints its own errors; the others leave that to cli.Run.
		kubectlutil.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
		return 0
	},
}

// kubeletCommand builds the kubelet's command, which wants a context in newer releases only.
func kubeletCommand() *cobra.Command {
	switch build := any(kubelet.NewKubeletCommand).(type) {
	case func() *cobra.Command:
		return build()
	case func(context.Context) *cobra.Command:
		return build(context.Background())
	default:
		panic(fmt.Sprintf("the kubelet's command is built by a %T", build))
	}
}

// command defers the building of a command until its program is asked for: the
// flags of two of them in one process would collide.
func command(build func() *cobra.Command) func() int {
	return func() int { return cli.Run(build()) }
}

func main() {
	name := filepath.Base(os.Args[0])
	program, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "called as %q: call it through a link named after one of its programs:\n", name)
		for program := range programs {
			fmt.Fprintln(os.Stderr, "  "+program)
		}
		os.Exit(2)
	}
	os.Exit(program())
}
