package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/apis/apps/validation"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/controller/daemon"
	daemonutil "k8s.io/kubernetes/pkg/controller/daemon/util"
)

// exampleDaemonSet returns the DaemonSet of the examples as the API server would store it. An unknown field, or an invalid value, fails the
// test.
func exampleDaemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	content, err := os.ReadFile("../../examples/fleet/hostdir.daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	strict := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict)
	object, _, err := strict.UniversalDeserializer().Decode(content, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	set := object.(*appsv1.DaemonSet)
	legacyscheme.Scheme.Default(set)
	var internal apps.DaemonSet
	if err := legacyscheme.Scheme.Convert(set, &internal, nil); err != nil {
		t.Fatal(err)
	}
	if problems := validation.ValidateDaemonSet(&internal, corevalidation.PodValidationOptions{}); len(problems) > 0 {
		t.Fatal(problems.ToAggregate())
	}
	return set
}

// TestDaemonSet rolls versions of the DaemonSet of the examples with the controller of Kubernetes. The kubelets are the test's: a pod is
// ready if its image is good. integration/fleet runs what is in the containers.
func TestDaemonSet(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	set := exampleDaemonSet(t)
	set.UID, set.Generation, set.Spec.MinReadySeconds = "set", 1, 1
	objects := []runtime.Object{set}
	names := []string{"node-1", "node-2", "node-3", "node-4"}
	for _, name := range names {
		objects = append(objects, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
	}
	client := fake.NewClientset(objects...)
	pods := 0
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		pods++
		pod.Name = fmt.Sprint(pod.GenerateName, pods) // which the API server does
		return false, nil, nil
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	controller, err := daemon.NewDaemonSetsController(ctx, factory.Apps().V1().DaemonSets(), factory.Apps().V1().ControllerRevisions(),
		factory.Core().V1().Pods(), factory.Core().V1().Nodes(), client, flowcontrol.NewBackOff(time.Second, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	go controller.Run(ctx, 1)

	latest := func() *appsv1.DaemonSet {
		t.Helper()
		found, err := client.AppsV1().DaemonSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	// await waits until all nodes have an image, and it is available: pods that are not are replaced at any time.
	await := func(image string) {
		t.Helper()
		for {
			got, s := kubelets(ctx, t, client), latest().Status
			if slices.Equal(got, []string{image, image, image, image}) && s.NumberAvailable == 4 && s.UpdatedNumberScheduled == 4 {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("the nodes have %q, want %q: %+v", got, image, s)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	roll := func(image string) (generation int64) {
		t.Helper()
		set := latest()
		set.Generation++
		set.Spec.Template.Spec.Containers[0].Image = image
		if _, err := client.AppsV1().DaemonSets(set.Namespace).Update(ctx, set, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		return set.Generation
	}
	await(set.Spec.Template.Spec.Containers[0].Image)
	roll("good")
	await("good")
	generation := roll("bad")
	for stopped := 0; stopped < 100; time.Sleep(50 * time.Millisecond) { // long after the controller could have begun the next node
		got := slices.DeleteFunc(kubelets(ctx, t, client), func(image string) bool { return image == "good" })
		if len(got) > 1 || ctx.Err() != nil {
			t.Fatalf("a bad version got to %q", got)
		}
		if s := latest().Status; s.ObservedGeneration == generation && s.UpdatedNumberScheduled == 1 && s.NumberUnavailable == 1 {
			stopped++
		}
	}
	roll("good")
	await("good")
}

// kubelets does once what the scheduler and the kubelets do: pods get their nodes, and are ready unless their image is bad. It returns the
// image of each node that has a pod.
func kubelets(ctx context.Context, t *testing.T, client kubernetes.Interface) (images []string) {
	t.Helper()
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	byNode := map[string]string{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		image := pod.Spec.Containers[0].Image
		node, err := daemonutil.GetTargetNodeName(pod)
		if err != nil {
			t.Fatal(err)
		}
		byNode[node] = strings.TrimSpace(byNode[node] + " " + image)
		if pod.Status.Phase == corev1.PodRunning {
			continue
		}
		ready := corev1.ConditionTrue
		if image == "bad" {
			ready = corev1.ConditionFalse
		}
		pod.ResourceVersion = "1" // the controller ignores an update to the same version
		pod.Spec.NodeName, pod.Status.Phase = node, corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}}
		if _, err := client.CoreV1().Pods(pod.Namespace).Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		images = append(images, byNode[node])
	}
	return images
}
